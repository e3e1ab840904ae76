"""Every lesson has the shape that lessons have, and the rules of that shape do catch what breaks them."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebooks.shape import WIDGET, broken_rules

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 300_000
EVERY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@EVERY
def test_notebook_has_the_shape_of_a_lesson(path: Path) -> None:
    assert broken_rules(nbformat.read(path, as_version=4)) == []


@EVERY
def test_notebook_is_valid_and_small(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=4))
    assert path.stat().st_size < MOST_BYTES


@EVERY
def test_notebook_is_named_by_number_and_listed_in_the_readme(path: Path) -> None:
    assert path.stem[:2].isdigit()
    assert path.stem[2] == "-"
    assert f"](notebooks/{path.name})" in (ROOT / "README.md").read_text()


def lesson() -> NotebookNode:
    """A made-up notebook that has the right shape."""
    start = new_markdown_cell("# Lesson\n\n1. see\n2. ask\n3. do\n\nTakes 30 minutes.")
    machine = new_code_cell("about()", outputs=[new_output("stream", name="stdout", text="4 ranks on the CPU, measured")])
    middle = [new_code_cell("predict('idle share?')\nshow()") for _ in range(2)]
    middle += [new_code_cell("labs.collectives()"), new_code_cell("check('sum', answer)"), new_code_cell("hints('sum')")]
    middle += [new_code_cell("a = 1\nb = 2\nc = 3") for _ in range(10)]
    talk = [new_markdown_cell("word " * 20) for _ in range(14)]
    end = [new_markdown_cell("## Recap\n\n- one\n- two\n- three"), new_markdown_cell("## Next\n\nOne step on.")]
    notebook = new_notebook(cells=[start, machine, *middle, *talk, *end])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return renumber(notebook)


def renumber(notebook: NotebookNode) -> NotebookNode:
    for number, cell in enumerate([cell for cell in notebook.cells if cell.cell_type == "code"], 1):
        cell.execution_count = number
    return notebook


def fourth_objective(notebook: NotebookNode) -> None:
    notebook.cells[0].source = notebook.cells[0].source.replace("3. do", "3. do\n4. more")


def no_minutes(notebook: NotebookNode) -> None:
    notebook.cells[0].source = notebook.cells[0].source.replace("30 minutes", "a while")


def silent_about_the_machine(notebook: NotebookNode) -> None:
    notebook.cells[1].outputs = []


def too_short(notebook: NotebookNode) -> None:
    del notebook.cells[14:18]
    renumber(notebook)


def long_cell(notebook: NotebookNode) -> None:
    notebook.cells[9].source = "x = 1\n" * 21
    notebook.cells[20].source += "word " * 140


def wide_line(notebook: NotebookNode) -> None:
    notebook.cells[7].source = "a = 1\nb = 2\nc = " + "1 + " * 25 + "12"


def tight_percent(notebook: NotebookNode) -> None:
    notebook.cells[3].outputs = [new_output("stream", name="stdout", text="idle 27.3% (predicted)")]


def percent_format(notebook: NotebookNode) -> None:
    notebook.cells[2].source = "predict(f'idle, of {all:.1%}?')\nshow()"


def lengthy_cells(notebook: NotebookNode) -> None:
    for cell in notebook.cells[7:17]:
        cell.source = "x = 1\n" * 7
    notebook.cells[20].source += "word " * 300


def wordy(notebook: NotebookNode) -> None:
    notebook.cells[20].source += "word " * 300


def terse(notebook: NotebookNode) -> None:
    for cell in notebook.cells[20:25]:
        cell.source = "```\n" + "word " * 200 + "\n```"


def no_predictions(notebook: NotebookNode) -> None:
    notebook.cells[2].source = notebook.cells[3].source = "show()\nshow()"


def torch_before_the_ranks(notebook: NotebookNode) -> None:
    notebook.cells[1].source = "import torch\nfrom course import Ranks, labs"


def closed_ranks(notebook: NotebookNode) -> None:
    notebook.cells[7].source = "a = 1\nb = 2\nranks.close()"


def no_lab(notebook: NotebookNode) -> None:
    notebook.cells[4].source = "x = 1"


def no_exercise(notebook: NotebookNode) -> None:
    notebook.cells[5].source = "x = 1"


def no_hints(notebook: NotebookNode) -> None:
    notebook.cells[6].source = "x = 1"


def no_recap(notebook: NotebookNode) -> None:
    notebook.cells[-2].source = "## Recap\n\nAll clear."


def no_next_step(notebook: NotebookNode) -> None:
    notebook.cells[-1].source = "The end."


def no_kernel(notebook: NotebookNode) -> None:
    del notebook.metadata["kernelspec"]


def not_executed(notebook: NotebookNode) -> None:
    notebook.cells[3].execution_count = None


def failed(notebook: NotebookNode) -> None:
    notebook.cells[3].outputs = [new_output("error", ename="RankDied", evalue="", traceback=[])]


def path_of_the_machine(notebook: NotebookNode) -> None:
    notebook.cells[3].outputs = [new_output("stream", name="stdout", text="File /home/ann/x.py, line 3")]


def rounding(notebook: NotebookNode) -> None:
    notebook.cells[3].outputs = [new_output("stream", name="stdout", text="largest difference 7.4e-16")]


def widget_state(notebook: NotebookNode) -> None:
    notebook.metadata["widgets"] = {}


def widget_without_picture(notebook: NotebookNode) -> None:
    notebook.cells[4].outputs = [new_output("display_data", data={WIDGET: {"model_id": "1"}, "text/plain": "labs.collectives()"})]


def test_a_lesson_of_the_right_shape_breaks_no_rule() -> None:
    assert broken_rules(lesson()) == []


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (fourth_objective, "4 objectives"),
        (no_minutes, "how many minutes"),
        (silent_about_the_machine, "what this machine will run"),
        (too_short, "29 cells"),
        (long_cell, "a code cell has 21 lines"),
        (wide_line, "cell 7 has a line of 106 characters"),
        (tight_percent, "cell 3 writes 3% without a space"),
        (percent_format, "cell 2 writes :.1%} without a space"),
        (lengthy_cells, "the median code cell has 7"),
        (wordy, "words of prose per line"),
        (terse, "words of prose per line"),
        (no_predictions, "0 cells ask"),
        (torch_before_the_ranks, "its first import is 'import torch'"),
        (closed_ranks, "cell 7 closes the ranks"),
        (no_lab, "no cell shows a lab"),
        (no_exercise, "0 exercises"),
        (no_hints, "folded hints"),
        (no_recap, "no recap"),
        (no_next_step, "no heading 'Next'"),
        (no_kernel, "No Kernel"),
        (not_executed, "not stored after one run"),
        (failed, "a cell failed: RankDied"),
        (path_of_the_machine, "/home/ann/x.py"),
        (rounding, "cell 3 shows 7.4e-16 and does not say measured"),
        (widget_state, "widget state"),
        (widget_without_picture, "without a static picture"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_rule_is_the_only_one_told(spoil: Callable[[NotebookNode], None], sentence: str) -> None:
    notebook = lesson()
    spoil(notebook)
    [told] = broken_rules(notebook)
    assert sentence in told

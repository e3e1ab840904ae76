"""The shape of a lesson, as rules: each gives the sentence that says how a notebook breaks it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from nbformat import NotebookNode

from course.bake import IGNORE

CELLS = (30, 45)
WORDS_PER_LINE = (6, 10)
MEDIAN_LINES, MOST_LINES = 6, 20
WIDEST = 105  # characters of code that a page of 1280 pixels shows beside JupyterLab's list of files
PREDICTIONS = (2, 4)
EXERCISES = (1, 2)
OBJECTIVES = RECAP_LINES = 3
HONEST = ("counted", "measured", "paced", "predicted")
WIDGET = "application/vnd.jupyter.widget-view+json"

Rule = Callable[[NotebookNode], Iterator[str]]


def broken_rules(notebook: NotebookNode) -> list[str]:
    """All that is wrong with the shape of a notebook; nothing for a good one."""
    return [sentence for rule in RULES for sentence in rule(notebook)]


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def prose(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def lines(cell: NotebookNode) -> int:
    return sum(1 for line in cell.source.splitlines() if line.strip())


def words(text: str) -> int:
    """Words a reader reads: not those in fenced code, nor tags, nor link targets."""
    text = re.sub(r"```.*?```|<[^>]+>|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return len(re.findall(r"\w[\w'-]*", text))


def items(text: str) -> int:
    return len(re.findall(r"^\s*(?:[-*]|\d+\.)\s+\S", text, re.MULTILINE))


def text_of(output: Any) -> str:
    """The plain text of a cell's output."""
    found = output.get("text", "") or output.get("data", {}).get("text/plain", "")
    return "".join(found)


def says_what_it_is(notebook: NotebookNode) -> Iterator[str]:
    first = notebook.cells[0]
    if first.cell_type != "markdown":
        yield "the first cell is not prose"
        return
    if items(first.source) != OBJECTIVES:
        yield f"the first cell lists {items(first.source)} objectives, not {OBJECTIVES}"
    if not re.search(r"\d+ minutes", first.source):
        yield "the first cell does not say how many minutes the lesson takes"
    shown = " ".join(text_of(o) for cell in notebook.cells[:4] if cell.cell_type == "code" for o in cell.outputs)
    if not any(word in shown for word in ("measured", "paced")):
        yield "no output of the first cells says what this machine will run: measured or paced"


def is_of_good_size(notebook: NotebookNode) -> Iterator[str]:
    if not CELLS[0] <= len(notebook.cells) <= CELLS[1]:
        yield f"{len(notebook.cells)} cells, not {CELLS[0]} to {CELLS[1]}"
    sizes = [lines(cell) for cell in code(notebook)]
    if statistics.median(sizes) > MEDIAN_LINES:
        yield f"the median code cell has {statistics.median(sizes)} lines, more than {MEDIAN_LINES}"
    yield from (f"a code cell has {size} lines, more than {MOST_LINES}" for size in sizes if size > MOST_LINES)
    ratio = sum(map(words, prose(notebook))) / sum(sizes)
    if not WORDS_PER_LINE[0] <= ratio <= WORDS_PER_LINE[1]:
        yield f"{ratio:.1f} words of prose per line of code, not {WORDS_PER_LINE[0]} to {WORDS_PER_LINE[1]}"


def fits_the_page(notebook: NotebookNode) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        widest = max(map(len, cell.source.splitlines()), default=0) if cell.cell_type == "code" else 0
        if widest > WIDEST:
            yield f"cell {number} has a line of {widest} characters, and a page shows {WIDEST}"


def writes_percent_apart(notebook: NotebookNode) -> Iterator[str]:
    """``27.3 %``, as all pictures and tables do; code that would print ``27.3%`` is found before it runs."""
    for number, cell in enumerate(notebook.cells):
        shown = " ".join([cell.source, *map(text_of, cell.get("outputs", []))])
        found = re.search(r"\d%(?!\w)|:[.\d]*%}", shown)
        if found:
            yield f"cell {number} writes {found.group()} without a space before the per cent sign"


def asks_before_it_shows(notebook: NotebookNode) -> Iterator[str]:
    predictions = [
        n for n, cell in enumerate(notebook.cells) if cell.cell_type == "code" and re.search(r"(?<![.\w])predict\(", cell.source)
    ]
    if not PREDICTIONS[0] <= len(predictions) <= PREDICTIONS[1]:
        yield f"{len(predictions)} cells ask for a prediction, not {PREDICTIONS[0]} to {PREDICTIONS[1]}"


def wakes_the_ranks_first(notebook: NotebookNode) -> Iterator[str]:
    """Importing ``Ranks`` starts the fork server, which loads torch beside whatever else the first cell imports."""
    first = next((line for cell in code(notebook) for line in cell.source.splitlines() if re.match(r"(from|import) ", line)), None)
    if first is not None and not first.startswith("from course import Ranks"):
        yield f"its first import is {first!r}: with Ranks before it, the ranks would start meanwhile"


def answers_after_the_last_cell(notebook: NotebookNode) -> Iterator[str]:
    """Who runs all cells and then makes a guess needs the ranks still."""
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and re.search(r"^ranks\.close\(\)", cell.source, re.MULTILINE):
            yield f"cell {number} closes the ranks: a guess made after all cells have run could not be tried"


def has_a_lab_and_exercises(notebook: NotebookNode) -> Iterator[str]:
    sources = [cell.source for cell in code(notebook)]
    if not any(re.search(r"\blabs\.\w+\(", source) for source in sources):
        yield "no cell shows a lab"
    exercises = {name for source in sources for name in re.findall(r"\bcheck\(\s*[\"']([^\"']+)", source)}
    if not EXERCISES[0] <= len(exercises) <= EXERCISES[1]:
        yield f"{len(exercises)} exercises are checked, not {EXERCISES[0]} to {EXERCISES[1]}"
    if not any(re.search(r"\bhints?\(", source) for source in sources):
        yield "no cell offers folded hints"


def ends_with_recap_and_next_step(notebook: NotebookNode) -> Iterator[str]:
    recaps = [text for text in prose(notebook) if re.match(r"#+ Recap", text)]
    if len(recaps) != 1 or items(recaps[0]) != RECAP_LINES:
        yield f"no recap of {RECAP_LINES} lines under a heading 'Recap'"
    if not any(re.search(r"^#+ Next", text, re.MULTILINE) for text in prose(notebook)[-3:]):
        yield "no heading 'Next' at the end, with the step to the next lesson"


def is_stored_executed(notebook: NotebookNode) -> Iterator[str]:
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its metadata names no python3 kernel: it opens with 'No Kernel'"
    counts = [cell.execution_count for cell in code(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"it was not stored after one run from top to bottom: execution counts {counts}"
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    yield from (f"a cell failed: {o.ename}" for o in outputs if o.output_type == "error")
    found = {path for o in outputs for path in re.findall(r"(?:/home|/root|/Users|/tmp|/work)/[\w./-]*", text_of(o))}
    yield from (f"an output shows a path of the machine it was made on: {path}" for path in sorted(found))


def compares_no_rounding(notebook: NotebookNode) -> Iterator[str]:
    """A stored number of this size is rounding, and another machine rounds otherwise: whoever says *measured* is not compared."""
    for number, cell in enumerate(notebook.cells):
        compared = IGNORE not in cell.metadata.get("tags", [])
        found = re.search(r"\b[\d.]+e-\d+", " ".join(map(text_of, cell.get("outputs", [])))) if compared else None
        if found:
            yield f"cell {number} shows {found.group()} and does not say measured: it would have to come out the same everywhere"


def is_baked(notebook: NotebookNode) -> Iterator[str]:
    if "widgets" in notebook.metadata:
        yield "it stores widget state"
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if set(output.get("data", {})) & {WIDGET} and not set(output.data) & {"image/png", "image/svg+xml", "text/html"}:
                yield f"cell {number} stores a widget without a static picture or table: nothing shows on GitHub"


RULES: tuple[Rule, ...] = (
    *(says_what_it_is, is_of_good_size, fits_the_page, writes_percent_apart, asks_before_it_shows, wakes_the_ranks_first),
    answers_after_the_last_cell,
    has_a_lab_and_exercises,
    *(ends_with_recap_and_next_step, is_stored_executed, compares_no_rounding, is_baked),
)

"""Baked notebooks: finished, small, the same twice, comparable."""

import base64
import copy
import json
import subprocess
import sys

import nbformat
import pytest

from course import bake

WIDGETS = """
import ipywidgets as widgets
from course.views import CurveView, TimelineView
from minipar.trace import Span, Timeline
predicted = Timeline([Span(r, "compute", "F", r, r + 1.0, microbatch=0) for r in range(3)], 3, "predicted")
view, curve = TimelineView(predicted), CurveView("step", "loss")
widgets.VBox([widgets.IntSlider(4, 1, 9, description="microbatches"), widgets.HBox([view, curve])])
"""
LATER = """
late = CurveView("step", "loss")
display(late)
for step in range(5):
    late.push("rank 0", step, 1.0, source="measured")
"""
TEXT = """
import sys, time
for i in range(3):
    print(f"\\r{i} of 3", end="")
print()
print(object(), __import__("minipar").__file__)
"""
COUNTED = "12 * 3  # bytes, counted"


@pytest.fixture(scope="module")
def baked(tmp_path_factory):
    path = tmp_path_factory.mktemp("bake") / "lesson.ipynb"
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in (WIDGETS, LATER, TEXT, COUNTED)]
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Lesson", id="title"), *cells])
    nbformat.write(notebook, path)
    bake.bake([path])
    return path


def outputs(path, cell):
    return nbformat.read(path, as_version=4).cells[cell].outputs


def test_a_lab_becomes_its_settings_and_a_picture_and_table_for_each_view(baked):
    settings, timeline, empty = outputs(baked, 1)
    assert settings.data["text/plain"] == "microbatches: 4"
    assert "rank 2" in timeline.data["text/plain"]
    assert base64.b64decode(timeline.data["image/png"]).startswith(b"\x89PNG")
    assert "image/png" not in empty.data  # the curve has no point yet


def test_a_view_filled_after_it_was_displayed_is_stored_full(baked):
    (late,) = outputs(baked, 2)
    assert "rank 0 (measured)" in late.data["text/plain"]
    assert "image/png" in late.data


def test_no_widget_state_and_nothing_of_this_machine_is_left(baked):
    text = baked.read_text()
    assert "widget" not in json.dumps([o for i in range(1, 5) for o in outputs(baked, i)])
    assert str(baked.parent) not in text
    assert sys.prefix not in text
    assert nbformat.read(baked, as_version=4).metadata == {
        "kernelspec": bake.KERNEL,
        "language_info": {"name": "python"},
    }


def test_the_source_of_a_question_is_folded_because_it_holds_the_answer(tmp_path):
    path = tmp_path / "lesson.ipynb"
    sources = ('predict("How many?", run=count, theory=3)', "from course.predict import predict", "lab.predict(\n    3\n)")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]), path)
    bake.bake([path], execute=False)
    folded = [cell.metadata.get("jupyter", {}).get("source_hidden", False) for cell in nbformat.read(path, as_version=4).cells]
    assert folded == [True, False, False]


def test_progress_bars_keep_their_last_state_and_addresses_are_taken_out(baked):
    (stream,) = outputs(baked, 3)
    lines = stream.text.splitlines()
    assert lines[0] == "2 of 3"
    assert lines[1].startswith("<object object at 0x...> minipar/")


def test_what_varies_is_marked_and_what_is_counted_is_compared(baked):
    cells = nbformat.read(baked, as_version=4).cells
    assert [bake.IGNORE in cell.metadata.get("tags", []) for cell in cells[1:]] == [True, True, True, False]


def test_baking_twice_gives_the_same_bytes(baked):
    before = baked.read_bytes()
    bake.bake([baked], execute=False)
    assert baked.read_bytes() == before
    bake.bake([baked])
    assert baked.read_bytes() == before


@pytest.mark.timeout(300)
def test_nbval_agrees_with_a_baked_notebook_and_sees_a_wrong_count(baked, tmp_path):
    line = [sys.executable, "-m", "pytest", "-q", "--nbval", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    notebook = nbformat.read(baked, as_version=4)
    wrong = copy.deepcopy(notebook.cells[-1])
    wrong["id"], wrong.outputs[0].data["text/plain"] = "wrong", "37"
    notebook.cells.append(wrong)
    nbformat.write(notebook, tmp_path / "both.ipynb")
    said = subprocess.run([*line, str(tmp_path / "both.ipynb")], capture_output=True, check=False, text=True).stdout
    assert "1 failed, 4 passed" in said
    assert "both.ipynb::Cell 4" in said


def test_a_failing_cell_is_told_and_the_file_left_alone(tmp_path):
    path = tmp_path / "bad.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    with pytest.raises(bake.BakeError, match="ZeroDivisionError"):
        bake.bake([path])
    assert path.read_bytes() == before


def test_a_notebook_that_is_too_large_is_refused_with_its_largest_cells(tmp_path):
    path = tmp_path / "big.ipynb"
    output = nbformat.v4.new_output("stream", text="x" * 400_000)
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("pass", outputs=[output])]), path)
    with pytest.raises(bake.BakeError, match=r"300,000 are allowed.*cell 0"):
        bake.bake([path], execute=False)

"""A learner opens the pipeline lab: edits the schedule by keyboard and mouse, is refused with the rule, and runs what is edited."""

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, expect

from minipar.pipeline_parallel import build
from tests.browser.labpage import LabPage
from tests.browser.server import Server

EDGE, SIDE, TOP, ROW_HEIGHT, SLOT_HEIGHT = 62, 74, 28, 30, 24  # pixels: schedule-layout.js


def open_lab(lab: Server, page: LabPage) -> Locator:
    notebook = new_notebook(
        cells=[new_code_cell('from course import labs\nlabs.pipeline(ranks=2, microbatches=3, schedule="gpipe")')]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.folder / "pipeline.ipynb")
    page.open("pipeline.ipynb")
    page.run_all()
    page.wait_idle()
    output = page.page.locator(".jp-OutputArea-output").first
    output.get_by_text("schedule: gpipe.").wait_for()  # from now on nothing moves by itself
    return output


def test_a_schedule_is_edited_refused_and_run(lab: Server, lab_page: LabPage) -> None:
    output = open_lab(lab, lab_page)
    canvas = output.locator(".mp-schedule canvas[role=application]")
    said = output.locator(".mp-schedule .mp-said")
    by_keyboard(lab_page, canvas, said)
    by_mouse(lab_page, canvas, said)
    expect(output.get_by_text("gpipe, edited")).to_be_visible()  # and that is what ran
    lab_page.screenshot("edited")
    costs_and_link(lab_page, output)
    assert lab_page.problems == []


def by_keyboard(page: LabPage, canvas: Locator, said: Locator) -> None:
    """B0 of rank 0 cannot come before F0; a step to the left of F2 it can."""
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    for key in ("ArrowRight", *["ArrowRight"] * 3, "Enter", *["ArrowLeft"] * 3, "Enter"):
        page.page.keyboard.press(key)
    expect(said).to_contain_text("B0 of rank 0 stays: rank 0, slot 0: B0 comes before F0, which it needs")
    page.screenshot("refused")


def by_mouse(page: LabPage, canvas: Locator, said: Locator) -> None:
    """B0 of rank 1 is dragged from slot 3 to stand behind F0."""
    box = canvas.bounding_box()
    assert box is not None
    start, scale = slots(box["width"])
    y = box["y"] + TOP + ROW_HEIGHT + SLOT_HEIGHT / 2
    page.page.mouse.move(box["x"] + EDGE + (start[3] + 1) * scale, y)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + EDGE + (start[1] + 0.3) * scale, y, steps=5)
    page.screenshot("dragging")
    page.page.mouse.up()
    expect(said).to_contain_text("moved B0 of rank 1 from slot 3 to slot 1")


def slots(width: float) -> tuple[list[float], float]:
    """Where the slots of rank 1 start, and pixels to a slot's time."""
    timeline = build("gpipe", 2, 3).simulate()
    return [s.start for s in timeline.of(1)], (width - EDGE - SIDE) / timeline.makespan


def costs_and_link(page: LabPage, output: Locator) -> None:
    """A typed cost and a moved slider are predicted at once; nonsense is refused beside the sliders."""
    box = output.get_by_label("stage costs")
    box.fill("1 x")
    box.press("Enter")
    expect(output.get_by_text("Not possible: stage costs: 'x' is not a number")).to_be_visible()
    box.fill("1 2")
    box.press("Enter")
    makespan = output.get_by_role("row").filter(has_text="makespan").first
    expect(makespan).to_contain_text("21 slots")
    page.press(page.slider("message takes"), "ArrowRight", times=5)
    expect(makespan).to_contain_text("25 slots")
    page.screenshot("slow-link")

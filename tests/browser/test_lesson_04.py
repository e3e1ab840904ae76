"""A learner opens lesson 4, runs it all, makes a guess, moves a slider by keyboard, sees picture and ranks follow, presses Stop."""

from playwright.sync_api import Locator

from tests.browser.labpage import LabPage
from tests.browser.server import Server

NOTEBOOK = "notebooks/04-buckets-and-overlap.ipynb"
TITLE, RUNNING, FOUND = "Buckets and overlap", "The ranks run", "Paced as a100-nvlink"


def lab_of(page: LabPage, label: str) -> Locator:
    """The widget that holds the slider with this label, views and table included."""
    title = page.page.locator(".widget-html-content b", has_text=label)
    return title.locator("xpath=ancestor::*[contains(@class, 'jp-OutputArea-output')][1]")


def test_lesson_four_works_as_a_learner_uses_it(lab: Server, lab_page: LabPage) -> None:
    lab_page.open(NOTEBOOK)
    lab_page.run_all()
    lab_page.wait_idle(timeout=240)
    guess(lab_page)
    move_a_slider(lab_page)
    stop(lab_page)
    assert lab_page.problems == []


def guess(lab_page: LabPage) -> None:
    """A guess unlocks Run; then guess, theory and what the ranks showed stand side by side."""
    asked = lab_of(lab_page, "Predict.").filter(has_text="How many times as long")
    asked.scroll_into_view_if_needed()
    run = asked.get_by_role("button", name="Run")
    assert run.is_disabled()
    lab_page.press(asked.locator(".noUi-handle"), "ArrowRight", times=3)
    run.click()
    asked.locator("img").wait_for()
    lab_page.until(lambda: asked.locator("img").evaluate("image => image.naturalWidth") > 300, "the picture of the answers")
    asked.get_by_text("Same computing, same bytes, same link.").wait_for()
    lab_page.screenshot("after-the-guess")


def move_a_slider(lab_page: LabPage) -> None:
    """The prediction follows at once, the ranks a moment later, and the picture is drawn while they run."""
    whole = lab_of(lab_page, TITLE)
    whole.scroll_into_view_if_needed()
    whole.get_by_text(FOUND).wait_for()
    last(lab_page, 4)
    picture = whole.locator(".mp-view").first
    before = lab_page.look(picture)
    lab_page.start_diary(whole)
    lab_page.press(lab_page.slider("layers"), "ArrowRight", times=2)
    lab_page.expect_readout("layers", "10")
    lab_page.wait_for_change(picture, before)
    lab_page.until(lambda: len(drawn_while_running(lab_page)) >= 2, "a picture drawn while the ranks run")
    whole.get_by_text(FOUND).wait_for()
    lab_page.screenshot("after-the-slider")


def last(lab_page: LabPage, seconds: float) -> None:
    """From now on a run lasts that long: a machine that stands still for a while must not hide all of it."""
    lab_page.execute(f"import course.labs.lab_data_parallel as lab_of_this_lesson; lab_of_this_lesson.SHOWN = {seconds}")


def drawn_while_running(lab_page: LabPage) -> list[str]:
    """The pictures that came after the last run's start and before it was over."""
    diary = lab_page.diary()
    starts = [i for i, (kind, text) in enumerate(diary) if kind == "status" and RUNNING in text]
    if not starts:
        return []
    pictures = []
    for kind, text in diary[starts[-1] :]:
        if kind == "status" and RUNNING not in text:
            break
        if kind == "picture":
            pictures.append(text)
    return pictures


def stop(lab_page: LabPage) -> None:
    last(lab_page, 60)
    whole = lab_of(lab_page, TITLE)
    whole.get_by_role("button", name="Run", exact=True).click()
    whole.get_by_text(RUNNING, exact=False).wait_for()
    whole.get_by_role("button", name="Stop", exact=True).click()
    whole.get_by_text("Stopped.", exact=True).wait_for()

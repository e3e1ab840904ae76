"""A learner opens lesson 4, runs it all, makes a guess, moves a slider by keyboard, sees picture and ranks follow, presses Stop."""

from playwright.sync_api import Locator

from tests.browser.labpage import LabPage
from tests.browser.server import Server

NOTEBOOK = "notebooks/04-buckets-and-overlap.ipynb"
TITLE, RUNNING = "Buckets and overlap", "The ranks run"


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
    asked.locator("img").wait_for(timeout=30_000)
    lab_page.screenshot("after-the-guess")
    assert asked.locator("img").evaluate("image => image.naturalWidth") > 300
    assert asked.get_by_text("Same computing, same bytes, same link.").is_visible()


def move_a_slider(lab_page: LabPage) -> None:
    """The prediction follows at once, the ranks a moment later, and the picture is drawn while they run."""
    whole = lab_of(lab_page, TITLE)
    whole.scroll_into_view_if_needed()
    whole.get_by_text("Paced as a100-nvlink").wait_for(timeout=60_000)
    picture = whole.locator(".mp-view").first
    before = lab_page.look(picture)
    lab_page.press(lab_page.slider("layers"), "ArrowRight", times=2)
    assert lab_page.readout("layers") == "10"
    predicted = lab_page.wait_for_change(picture, before)
    whole.get_by_text(RUNNING, exact=False).wait_for(timeout=10_000)
    running = lab_page.wait_for_change(picture, predicted)
    lab_page.wait_for_change(picture, running)
    whole.get_by_text("Paced as a100-nvlink").wait_for(timeout=30_000)
    lab_page.screenshot("after-the-slider")


def stop(lab_page: LabPage) -> None:
    whole = lab_of(lab_page, TITLE)
    whole.get_by_role("button", name="Run", exact=True).click()
    whole.get_by_text(RUNNING, exact=False).wait_for(timeout=10_000)
    whole.get_by_role("button", name="Stop", exact=True).click()
    whole.get_by_text("Stopped.", exact=True).wait_for(timeout=5_000)

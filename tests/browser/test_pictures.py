"""The views in a real JupyterLab: drawn, redrawn by a slider, live, read by keyboard, in a light and in a dark theme."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.labpage import LabPage

SLIDER = """
import ipywidgets as widgets
from course.views import CurveView, ExpertsView, RankStates, TimelineView
from minipar.trace import Span, Timeline

def predict(microbatches, ranks=4):
    spans = [Span(r, "compute", "F", float(r + i), float(r + i + 1), stage=r, microbatch=i)
             for r in range(ranks) for i in range(microbatches)]
    return Timeline(spans, ranks, "predicted")

view = TimelineView(predict(4), unit="slots")
slider = widgets.IntSlider(4, 1, 32, description="microbatches")
slider.observe(lambda change: view.show(predicted=predict(change.new)), "value")
widgets.VBox([slider, view])
"""
LIVE = """
import time
from course import Ranks
from course.live import live, on
from course.ranks import emit
from minipar.trace import tracer

def work(steps):
    for i in range(steps):
        with tracer.span("F", microbatch=i):
            time.sleep(0.01)
        emit("loss", {"x": i, "y": 1 / (i + 1)})

curve = CurveView("step", "loss")
states = RankStates()
display(states, curve)
with Ranks(2) as ranks:
    states.watch(ranks)
    with live(ranks.start(work, 100), view, on("loss", lambda e: curve.push(f"rank {e.rank}", **e.payload))):
        pass
"""
EXPERTS = """
experts = ExpertsView(8, 4)
for step in range(50):
    load = [10 + (e == 7) * step * 5 for e in range(8)]
    traffic = [[0 if a == b else 100 * b for b in range(4)] for a in range(4)]
    experts.push(step, load, [sum(load[2 * r : 2 * r + 2]) for r in range(4)], 0.01 * step, traffic)
experts
"""
CHART = """
from course.views.charts import bars
bars(["dp", "zero-3"], {"weights": [4e6, 1e6], "optimizer": [8e6, 2e6]}, unit="B", title="memory per rank", stacked=True)
"""
MASKS = """
from course.labs.lab_long_context import masks, notes, pairs
from course.views.masks import MaskView
from minipar.context_parallel import TokenLayout

mask_view = MaskView()
cp, blocks = widgets.IntSlider(2, 1, 4, description="cp"), widgets.IntSlider(1, 1, 9, description="blocks")

def cut(change=None):
    layout = TokenLayout.of("zigzag", cp.value)
    mask_view.show(masks(layout), pairs(layout, 240 * blocks.value), notes(layout))

cut()
cp.observe(cut, "value")
blocks.observe(cut, "value")
widgets.VBox([cp, blocks, mask_view])
"""
BLUE_SHARE = """() => {
    const canvas = document.querySelector('.mp-masks canvas');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let blue = 0;
    const near = (i, value) => Math.abs(data[i] - value) < 12;
    for (let i = 0; i < data.length; i += 4) blue += near(i, 0) && near(i + 1, 114) && near(i + 2, 178);
    return { blue: blue / window.devicePixelRatio ** 2, width: canvas.clientWidth };
}"""
CHART_SIZE = """() => {
    const { clientWidth, clientHeight } = document.querySelector('.jp-RenderedPlotly .main-svg');
    return [clientWidth, clientHeight];
}"""
SCHEDULE = """
from course.views import ScheduleView
from minipar.pipeline_parallel import build
ScheduleView(build("1f1b", ranks=2, microbatches=3))
"""


@pytest.fixture
def pictures(lab, lab_page: LabPage) -> LabPage:
    lab_page.open(lab.write("pictures.ipynb", SLIDER, LIVE, EXPERTS, CHART, MASKS, SCHEDULE))
    lab_page.run_all()
    lab_page.wait_idle()
    return lab_page


def blue(pictures: LabPage, ranks: int) -> float:
    """What the ranks compute together, in squares."""
    seen = pictures.page.evaluate(BLUE_SHARE)
    side = min(200, (seen["width"] - 14) // ranks - 14)
    return float(seen["blue"] / side**2)


def masks_follow_their_sliders(pictures: LabPage) -> None:
    """All squares together show every pair that the mask leaves once; a value that changes no pixel is read aloud all the same."""
    page = pictures.page
    canvas = page.locator(".mp-masks canvas[role=img]")
    canvas.scroll_into_view_if_needed()
    page.wait_for_function("() => Number(document.querySelector('.mp-masks').dataset.drawn) > 0")
    size = 48  # tokens that a square stands for
    for ranks in (2, 3, 4):
        page.wait_for_function(f"() => document.querySelector('.mp-masks canvas').ariaLabel.includes('rank {ranks - 1}')")
        pictures.until(
            lambda ranks=ranks: blue(pictures, ranks) == pytest.approx((size + 1) / (2 * size), abs=0.03), "half of a square"
        )
        if ranks < 4:
            pictures.press(pictures.slider("cp"), "ArrowRight")
    assert "922,560" not in canvas.get_attribute("aria-label")
    pictures.press(pictures.slider("blocks"), "ArrowRight", times=3)  # the same squares for four times the tokens
    page.wait_for_function("() => document.querySelector('.mp-masks canvas').ariaLabel.includes('922,560')")
    pictures.screenshot("dark-masks")


def test_views_draw_and_answer_in_jupyterlab(pictures: LabPage) -> None:
    page = pictures.page
    timeline = page.locator(".mp-timeline canvas[role=application]").first
    for name in ("timeline", "states", "curves", "experts"):
        page.locator(f".mp-{name}").first.scroll_into_view_if_needed()
        page.wait_for_function(f"() => Number(document.querySelector('.mp-{name}').dataset.drawn) > 0")

    # a slider moved by keyboard redraws the prediction
    before = pictures.look(timeline)
    pictures.press(pictures.slider("microbatches"), "ArrowRight", times=3)
    pictures.wait_for_change(timeline, before)
    pictures.expect_readout("microbatches", "7")
    page.wait_for_function(
        "() => document.querySelector('.mp-timeline canvas[role=application]').ariaLabel.includes('makespan 10 slots')"
    )

    # the live run ended as the whole timeline, measured
    page.wait_for_function(
        "() => document.querySelector('.mp-timeline canvas[role=application]').ariaLabel.includes('measured: makespan')"
    )

    # keys are the view's, not the notebook's: spans are read aloud one by one
    timeline.focus()
    for key in ("+", "Enter", "Tab", "Tab"):
        page.keyboard.press(key)
    spoken = page.locator(".mp-timeline .mp-spoken").first
    expect(spoken).to_contain_text("F2 · rank 0 · predicted")
    page.keyboard.press("Escape")
    expect(spoken).to_have_text("")
    assert page.evaluate("() => window.minipar.content.mode") != "edit"

    pictures.screenshot("light")
    light = pictures.look(timeline)
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    pictures.wait_for_change(timeline, light)
    pictures.screenshot("dark")
    page.locator(".mp-experts").first.scroll_into_view_if_needed()
    pictures.screenshot("dark-experts")
    # plotly shows our PNG, and draws its chart under the pointer: without a network, without a button that shares it
    page.locator(".jp-RenderedPlotly img").first.dispatch_event("mouseenter")
    page.wait_for_selector(".jp-RenderedPlotly .modebar")
    expect(page.locator(".jp-RenderedPlotly .bars .point")).to_have_count(4)
    assert page.locator("[data-title*='Share'], [data-title*='cloud']").count() == 0
    pictures.screenshot("dark-chart")
    wide = page.evaluate(CHART_SIZE)
    page.set_viewport_size({"width": 1100, "height": 900})  # the chart becomes narrower, and keeps its height
    page.wait_for_function(f"(before) => ({CHART_SIZE})()[0] < before", arg=wide[0])
    assert page.evaluate(CHART_SIZE)[1] == wide[1]
    page.set_viewport_size({"width": 1280, "height": 900})

    masks_follow_their_sliders(pictures)

    # a slot moved by keyboard: Python refuses with the rule, or accepts
    page.locator(".mp-schedule").scroll_into_view_if_needed()
    page.locator(".mp-schedule canvas[role=application]").focus()
    said = page.locator(".mp-schedule .mp-said")
    for key in ("ArrowRight", "Enter", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function("() => document.querySelector('.mp-said').textContent.includes('F0 of rank 0 stays')")
    for key in ("ArrowDown", "ArrowRight", "Enter", "ArrowRight", "Enter"):  # the cursor stayed with F0
        page.keyboard.press(key)
    page.wait_for_function("() => document.querySelector('.mp-said').textContent.includes('moved B0 of rank 1')")
    assert "mp-refused" not in (said.get_attribute("class") or "")
    pictures.screenshot("dark-schedule")
    assert pictures.problems == []

"""How quickly a learner sees something, in a headless Chromium on this machine: ``python -m tests.benchmarks.bench_browser``.

* slider: from the key press to the canvas that shows the new prediction; key by key in turn with a bare slider that only changes a
  label, which says how much of it is the machine and the round trip;
* first picture: from running the cell to the first frame of its live view;
* live lag: from a span's end on a rank to the frame that shows it.

Browser, kernel and ranks share the machine and its clock; all times are measured.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import nbformat
from playwright.sync_api import sync_playwright

from course.browser import find_chromium
from tests.browser.conftest import FLAGS
from tests.browser.labpage import LabPage
from tests.browser.server import serve

KEYS = 40

SETUP = """
import time
import ipywidgets as widgets
from course import Ranks
from course.live import live
from course.views import TimelineView
from minipar.pipeline_parallel import build
from minipar.trace import Span, Timeline, tracer

def predict(microbatches):
    return build("1f1b", ranks=4, microbatches=microbatches).simulate(forward=0.01, input_grad=0.01, weight_grad=0.01)

ranks = Ranks(2)
ranks.run(lambda: None)
"""
SLIDER = """
view = TimelineView(predict(8))
slider = widgets.IntSlider(8, 8, 64, description="microbatches")
slider.observe(lambda change: view.show(predicted=predict(change.new)), "value")
bare, label = widgets.IntSlider(8, 8, 64, description="bare"), widgets.Label("at 8")
bare.observe(lambda change: setattr(label, "value", f"at {change.new}"), "value")
widgets.VBox([slider, view, bare, label])
"""
LIVE = """
def work(steps):
    for i in range(steps):
        with tracer.span("F", microbatch=i):
            time.sleep(0.005)

shown = TimelineView()
display(shown)
with live(ranks.start(work, 600), shown):
    pass
"""

# Keys go to the slider one by one; each waits for the frame that shows its state.
TIME_KEYS = """async (keys) => {
    const root = document.querySelector('.mp-timeline'), [handle, bare] = document.querySelectorAll('.noUi-handle');
    const label = Array.from(document.querySelectorAll('.widget-label')).find((node) => node.textContent.startsWith('at '));
    const press = (target, state) => new Promise((resolve) => {
        target.focus();
        const before = state(), begin = performance.now();
        const look = () => state() !== before ? resolve(performance.now() - begin) : setTimeout(look, 0);
        target.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', code: 'ArrowRight', keyCode: 39, bubbles: true}));
        look();
    });
    const out = [[], []];
    for (let i = 0; i < keys; i++) {
        out[0].push(await press(handle, () => root.dataset.serial));
        await new Promise((r) => setTimeout(r, 60));
        out[1].push(await press(bare, () => label.textContent));
        await new Promise((r) => setTimeout(r, 60));
    }
    return out;
}"""
# A frame that shows n spans appears at t; the kernel knows when span n ended. Both clocks are this machine's.
WATCH_LIVE = """(index) => {
    window.frames = [];
    const begin = Date.now();
    let seen = -1;
    const timer = setInterval(() => {
        const root = document.querySelectorAll('.mp-timeline')[index];
        if (!root || root.dataset.serial === seen) return;
        seen = root.dataset.serial;
        const label = root.querySelector('canvas[role=application]').ariaLabel;
        window.frames.push([Date.now(), Number(root.dataset.spans ?? 0), label]);
    }, 1);
    window.stopWatch = () => clearInterval(timer);
    window.watchBegin = begin;
}"""
RUN_CELL = """(i) => {
    const panel = window.minipar;
    panel.content.activeCellIndex = i;
    panel.content.deselectAll();
    window.cellBegin = Date.now();
    window.cellDone = false;
    window.jupyterapp.commands.execute('notebook:run-cell').then(() => { window.cellDone = true; });
}"""
ENDS = """
import json
_ends = {rank: [s.end + time.time() - time.monotonic() for s in shown.measured.of(rank)] for rank in range(2)}
print(json.dumps(_ends))
"""


def run_cell(page: LabPage, index: int) -> None:
    page.page.evaluate(RUN_CELL, index)
    page.page.wait_for_function("() => window.cellDone", timeout=120_000)


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main() -> None:
    with tempfile.TemporaryDirectory() as home, serve(Path(home)) as server, sync_playwright() as playwright:
        cells = [nbformat.v4.new_code_cell(text.strip()) for text in (SETUP, SLIDER, LIVE, ENDS)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, server.folder / "speed.ipynb")
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        page = LabPage(browser.new_context(viewport={"width": 1280, "height": 1600}).new_page(), server, "speed")
        page.open("speed.ipynb")
        measure(page)
        page.close()
        browser.close()


def measure(page: LabPage) -> None:
    run_cell(page, 0)
    run_cell(page, 1)
    page.page.wait_for_selector(".mp-timeline[data-drawn]")
    page.page.evaluate(TIME_KEYS, 5)  # the first ones warm up
    keys, bare = page.page.evaluate(TIME_KEYS, KEYS)
    for name, values in (("slider key to redrawn prediction", keys), ("bare slider key to changed label", bare)):
        print(f"{name}, ms (measured, {KEYS} keys in turn): median {statistics.median(values):.0f}, p95 {p95(values):.0f}")
    print(f"ratio of the medians (measured): {statistics.median(keys) / statistics.median(bare):.2f}")
    page.page.evaluate(WATCH_LIVE, 1)
    run_cell(page, 2)
    page.page.evaluate("() => window.stopWatch()")
    frames = page.page.evaluate("() => window.frames")
    begin = page.page.evaluate("() => window.cellBegin")
    first = next(t for t, spans, _ in frames if spans) - begin
    print(f"cell run to first live picture, s (measured): {first / 1000:.2f}")
    run_cell(page, 3)
    report_lag(frames, page)


def report_lag(frames: list[tuple[float, int, str]], page: LabPage) -> None:
    """How old the newest span of each frame was when it appeared. The last frame is the finished run."""
    import json

    text = "".join(o.get("text", "") for o in page.cells()[3]["outputs"])
    ends = sorted(e for row in json.loads(text).values() for e in row)
    lags = [t / 1000 - ends[min(spans, len(ends)) - 1] for t, spans, _ in frames[:-1] if spans]
    print(f"live lag, s (measured, {len(lags)} frames): median {statistics.median(lags):.2f}, p95 {p95(lags):.2f}")


if __name__ == "__main__":
    main()

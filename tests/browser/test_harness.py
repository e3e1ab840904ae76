"""The browser harness itself, on notebooks made here: widgets show, the keyboard moves them, the kernel answers."""

import json
import urllib.error
import urllib.request

import psutil
import pytest

from tests.browser.labpage import LabPage
from tests.browser.server import Server

WIDGETS = """
import anywidget, ipywidgets, traitlets
class Square(anywidget.AnyWidget):
    _esm = '''export default { render({ model, el }) {
        const canvas = document.createElement("canvas");
        canvas.className = "square"; canvas.width = canvas.height = 60; el.append(canvas);
        const draw = () => {
            const ink = canvas.getContext("2d");
            ink.fillStyle = "white"; ink.fillRect(0, 0, 60, 60);
            ink.fillStyle = "black"; ink.fillRect(0, 0, model.get("side"), 30);
        };
        model.on("change:side", draw); draw();
    } }'''
    side = traitlets.Int(10).tag(sync=True)
square = Square()
slider = ipywidgets.IntSlider(value=3, min=1, max=9, description="ranks")
out = ipywidgets.Label(value="value 3")
def moved(change):
    square.side = 6 * change["new"]
    out.value = f"value {change['new']}"
slider.observe(moved, "value")
ipywidgets.VBox([slider, out, square])
"""


def test_a_slider_moved_by_keyboard_redraws_and_a_failing_cell_and_a_console_error_are_told(lab: Server, lab_page: LabPage) -> None:
    lab_page.open(lab.write("widgets.ipynb", WIDGETS, "6 * 7", "raise ValueError('rank 2')", "3"))
    lab_page.run_all()
    with pytest.raises(AssertionError, match="ValueError: rank 2"):
        lab_page.wait_idle()
    assert [cell["count"] for cell in lab_page.cells()] == [1, 2, 3, None]
    assert lab_page.cells()[1]["outputs"][0]["data"]["text/plain"] == "42"
    canvas = lab_page.page.locator("canvas.square")
    before = lab_page.look(canvas)
    lab_page.expect_readout("ranks", "3")
    lab_page.press(lab_page.slider("ranks"), "ArrowRight", times=2)
    lab_page.page.get_by_text("value 5", exact=True).wait_for()
    lab_page.wait_for_change(canvas, before)
    lab_page.expect_readout("ranks", "5")
    assert lab_page.page.locator(".jp-Dialog, .Toastify__toast").count() == 0  # nothing asks for news
    assert lab_page.problems == []
    lab_page.page.evaluate("console.error('lost a frame')")
    lab_page.until(lambda: any("lost a frame" in problem for problem in lab_page.problems))


def test_the_server_wants_its_token_and_listens_on_loopback_alone(lab: Server) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{lab.url}/api/contents")
    request = urllib.request.Request(f"{lab.url}/api/contents", headers={"Authorization": f"token {lab.token}"})
    assert "content" in json.load(urllib.request.urlopen(request))
    process = psutil.Process(lab.pid)
    listening = [c for p in (process, *process.children(recursive=True)) for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}

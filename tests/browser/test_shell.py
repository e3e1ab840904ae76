"""Widgets where their messages share the shell of the cells: ipykernel's subshells are off, as in kernels that have none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.labpage import LabPage
from tests.browser.server import Server

LAB = """
from course import labs
lab = labs.data_parallel(ranks=2, layers=3)
lab
"""
BUSY = """
import time
from pathlib import Path
from course import Ranks
from course.live import live, on
from course.ranks import emit
from course.views import CurveView

def work():
    step = 0
    while not Path("go-on").exists():
        time.sleep(0.1)
        emit("loss", step)
        step += 1

curve = CurveView("step", "loss")
display(curve)
with Ranks(1) as ranks, live(ranks.start(work), on("loss", lambda e: curve.push("loss", e.payload, e.payload))):
    pass
"""


@pytest.fixture
def comms_in_the_shell(lab: Server) -> Iterator[None]:
    file = lab.settings / "@jupyterlab" / "apputils-extension" / "kernels-settings.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"commsOverSubshells": "disabled"}')
    yield
    file.unlink()


def test_live_pictures_sliders_and_stop_without_subshells(lab: Server, comms_in_the_shell: None, lab_page: LabPage) -> None:
    lab_page.open(lab.write("shell.ipynb", LAB, BUSY))
    page = lab_page.page
    assert page.evaluate("() => window.minipar.sessionContext.session.kernel.commsOverSubshells") == "disabled"
    lab_page.run_all()

    # while a cell runs its picture is drawn live; a slider waits for the end of the cell, and nothing is lost
    page.wait_for_function("() => Number(document.querySelector('.mp-curves')?.dataset.drawn) > 2")
    assert not page.evaluate("() => window.miniparRun.done")
    lab_page.press(lab_page.slider("layers"), "ArrowRight", times=2)
    (lab.folder / "go-on").touch()
    lab_page.wait_idle()
    status = page.locator("[role=status]")
    status.get_by_text("Paced as a100-nvlink").wait_for()
    table = page.locator(".widget-html-content table")
    table.get_by_role("row", name="all-reduces").get_by_text("3", exact=True).first.wait_for()  # of 5 layers, by two

    # no cell runs: sliders, Run and Stop answer at once, while the ranks are at work
    lab_page.execute("labs.lab_data_parallel.SHOWN = 60")  # seconds that a run lasts
    lab_page.button("Run").click()
    status.get_by_text("The ranks run", exact=False).wait_for()
    lab_page.button("Stop").click()
    status.get_by_text("Stopped.", exact=True).wait_for()
    assert lab_page.problems == []

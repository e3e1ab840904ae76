"""A lab with somebody before it: a moved slider is posted, refused or run, and its widget says so."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from course import labs
from course.labs import driver, lab_data_parallel, lab_ranks, pool
from course.labs.base import Lab
from course.labs.controls import Control, Slider, Steps
from course.labs.driver import Cancelled
from course.labs.go import Go
from course.predict import predict
from minipar.trace import now


@pytest.fixture(scope="module", autouse=True)
def somebody_there() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MINIPAR_ATTENDED", "1")
        monkeypatch.setattr(lab_data_parallel, "SHOWN", 0.2)  # seconds of a paced run
        yield
    pool.close()


def controls(lab: Any) -> dict[str, Any]:
    return lab.panel._controls


def test_moving_a_slider_predicts_and_runs_with_the_new_value() -> None:
    lab = labs.data_parallel(ranks=2, layers=3, bucket=1)
    assert lab.driver.settle(60)
    controls(lab)["layers"].value = 4
    assert lab.driver.settle(60)
    assert lab.figures.predicted["all-reduces"][0] == lab.figures.found["all-reduces"][0] == 4
    assert "Paced as a100-nvlink" in lab.panel._status.value
    assert "all-reduces" in lab.panel._table.value


def test_an_impossible_value_is_refused_beside_the_sliders_and_nothing_runs() -> None:
    lab = labs.collectives(ranks=4, mb=0.01, algorithm="recursive doubling")
    lab.driver.stop()
    assert lab.driver.settle(60)
    controls(lab)["ranks"].value = 3
    assert "Not possible: recursive doubling pairs" in lab.panel._status.value
    assert lab.timeline.blocks[0].ranks == 4  # the last possible picture stays, and the learner is told so
    assert lab.panel._status.value.count("Below stays what was possible last.") == 1


class Bench(Lab):
    """No pictures; 3 is impossible, and beside 2 the other slider makes no difference. A run lasts until it is cancelled."""

    title = "Bench"

    def __init__(self) -> None:
        self.started = threading.Event()
        super().__init__()

    def controls(self) -> dict[str, Control]:
        return {"n": Slider("n", 1, 3, 1), "link": Steps("message", (0.0, 0.5), 0.5, unit="slots")}

    def make_views(self) -> list[Any]:
        return []

    def refuse(self, v: SimpleNamespace) -> str | None:
        return "three is too many" if v.n == 3 else None

    def unused(self, v: SimpleNamespace) -> tuple[str, ...]:
        return ("link",) if v.n == 2 else ()

    def predict(self, v: SimpleNamespace) -> None:
        pass

    def measure(self, go: Go, v: SimpleNamespace) -> str:
        self.started.set()
        while not go.cancelled():
            self.started.wait(0.001)
        raise Cancelled


def test_a_possible_value_clears_the_refusal_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the ranks start: here they rest for ten minutes first."""
    monkeypatch.setattr(driver, "REST", 600.0)
    lab = Bench()
    assert lab.started.wait(20)
    controls(lab)["n"].value = 3
    assert "Not possible: three is too many" in lab.panel._status.value
    controls(lab)["n"].value = 2
    assert "The ranks start" in lab.panel._status.value
    lab.stop()
    assert lab.driver.settle(20)


def test_a_value_that_is_refused_while_an_older_one_is_predicted_says_what_stays_on_show() -> None:
    lab = Bench()
    assert lab.started.wait(20)
    lab.stop()
    assert lab.driver.settle(20)  # the first prediction is drawn, which nothing else says: ranks may start before
    lab.figures.predicted.clear()  # as every prediction begins
    controls(lab)["n"].value = 3
    assert "Below stays what was possible last." in lab.panel._status.value


def test_the_run_that_a_refused_value_ends_does_not_hide_the_refusal() -> None:
    lab = Bench()
    assert lab.started.wait(20)
    controls(lab)["n"].value = 3
    assert lab.driver.settle(20)
    assert "Not possible: three is too many" in lab.panel._status.value


def test_stop_says_so_where_something_was_to_be_stopped() -> None:
    lab = Bench()
    assert lab.started.wait(20)
    lab.panel._stop.click()
    assert lab.driver.settle(20)
    assert "Stopped." in lab.panel._status.value
    controls(lab)["n"].value = 3
    lab.panel._stop.click()
    assert "Not possible" in lab.panel._status.value


def test_a_setting_without_effect_is_greyed_and_left_out_of_the_caption() -> None:
    lab = Bench()
    assert lab.settings() == "n 1, message 0.5 slots"
    assert not controls(lab)["link"].disabled
    controls(lab)["n"].value = 2
    assert controls(lab)["link"].disabled
    assert lab.settings() == "n 2"
    controls(lab)["n"].value = 1
    assert not controls(lab)["link"].disabled
    lab.stop()
    assert lab.driver.settle(20)


def test_a_failing_run_is_told_beside_the_sliders() -> None:
    lab = labs.ranks(ranks=3, which=1, when=0, what="raises an error")
    assert lab.driver.settle(60)
    assert "RankError: rank 1 raised ValueError" in lab.panel._status.value


def test_the_tiles_of_ranks_that_were_stopped_say_idle_and_count_no_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_ranks, "PATIENCE", 600.0)
    lab = labs.ranks(ranks=2, which=1, when=0, what="loops for ever")
    deadline = now() + 60
    while not (lab.states.states and lab.states.states[1].state == "running") and now() < deadline:
        threading.Event().wait(0.01)
    lab.panel._stop.click()
    assert lab.driver.settle(60)
    assert [(tile["text"], tile["ticks"]) for tile in lab.states._content()[0]["tiles"]] == [("idle", False)] * 2


def test_run_of_a_prediction_unlocks_with_the_guess() -> None:
    asked = predict("Idle share?", run=lambda: 0.75, theory=0.75, unit="share")
    _, row, _, picture = asked.widget.children
    slider, button = row.children
    assert button.disabled
    assert asked.found is None
    slider.value = 0.5
    assert not button.disabled
    button.click()
    for thread in threads("minipar prediction"):
        thread.join(60)
    assert (asked.guess, asked.found) == (0.5, 0.75)
    assert picture.layout.display == "block"
    assert bytes(picture.value[:4]) == b"\x89PNG"


def test_a_prediction_whose_run_fails_says_so_and_can_be_run_again() -> None:
    asked = predict("Idle share?", run=lambda: 1 / 0, theory=0.75, unit="share")
    _, row, note, _ = asked.widget.children
    row.children[0].value = 0.5
    row.children[1].click()
    for thread in threads("minipar prediction"):
        thread.join(60)
    assert "ZeroDivisionError" in note.value
    assert not row.children[1].disabled


def threads(name: str) -> list[Any]:
    return [t for t in threading.enumerate() if t.name == name]


def test_a_step_is_written_as_the_pictures_write_it() -> None:
    steps = Steps("sequence", (512, 61_440, 0.5, 4.0, "none", True), 61_440)
    assert [text for text, _ in steps.widget().options] == ["512", "61,440", "0.5", "4", "none", "True"]
    assert [text for text, _ in Steps("message", (0.0, 0.5), 0.5, unit="slots").widget().options] == ["0 slots", "0.5 slots"]

"""A lab with somebody before it: a moved slider is posted, refused or run, and its widget says so."""

from collections.abc import Iterator
from typing import Any

import pytest

from course import labs
from course.labs import lab_data_parallel, pool
from course.predict import predict


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
    assert lab.timeline.blocks[0].ranks == 4  # the last possible picture stays


def test_a_failing_run_is_told_beside_the_sliders() -> None:
    lab = labs.ranks(ranks=3, which=1, when=0, what="raises an error")
    assert lab.driver.settle(60)
    assert "RankError: rank 1 raised ValueError" in lab.panel._status.value


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
    import threading

    return [t for t in threading.enumerate() if t.name == name]

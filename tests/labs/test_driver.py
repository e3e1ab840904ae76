"""Newest value wins: what a slider passes on its way is not run, what runs for an older value is ended, Stop stops."""

import threading
import time
from typing import Any

from course.labs.driver import Driver


class Bench:
    """A lab of which only the calls are kept. Its runs last until they are cancelled or released."""

    def __init__(self) -> None:
        self.predicted: list[int] = []
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.finished: list[int] = []
        self.release = threading.Event()
        self.driver = Driver(lambda v: self.predicted.append(v["n"]), self.measure)

    def measure(self, values: dict[str, Any], cancelled: Any) -> None:
        self.started.append(values["n"])
        while not self.release.wait(0.005):
            if cancelled():
                self.cancelled.append(values["n"])
                return
        self.finished.append(values["n"])


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def test_the_newest_value_ends_the_run_of_an_older_one() -> None:
    bench = Bench()
    bench.driver.post({"n": 1})
    until(lambda: bench.started == [1])
    bench.driver.post({"n": 2})
    until(lambda: bench.started == [1, 2])
    bench.release.set()
    assert bench.driver.settle(60)
    assert (bench.cancelled, bench.finished) == ([1], [2])


def test_values_that_a_slider_passes_are_predicted_or_skipped_but_not_run() -> None:
    bench = Bench()
    bench.release.set()
    with bench.driver._changed:  # on its way without a rest, however slow this machine is
        for n in range(20):
            bench.driver.post({"n": n})
    assert bench.driver.settle(60)
    assert bench.predicted == bench.started == [19]


def test_stop_ends_the_run_and_starts_no_other() -> None:
    bench = Bench()
    bench.driver.post({"n": 1})
    until(lambda: bench.started == [1])
    bench.driver.stop()
    assert bench.driver.settle(60)
    assert (bench.cancelled, bench.finished, bench.started) == ([1], [], [1])


def test_a_post_never_waits_for_a_run_or_a_prediction() -> None:
    slow = threading.Event()
    driver = Driver(lambda v: slow.wait(100) and None, lambda v, cancelled: slow.wait(100) and None)
    posted = threading.Thread(target=lambda: [driver.post({"n": n}) for n in range(100)])
    posted.start()
    posted.join(60)
    alive = posted.is_alive()
    slow.set()
    assert not alive

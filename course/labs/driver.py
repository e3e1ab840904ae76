"""Newest value wins: two threads between a lab's sliders and its ranks.

A slider's callback may run in a thread of its own, beside a cell: it only posts. One thread redraws the prediction at once; the
other runs the ranks, and ends a run whose values are no longer the newest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from minipar.trace import now

REST = 0.25  # seconds without a newer value before the ranks run: a slider on its way passes many
LOOK = 0.03  # seconds between two looks for a newer value

Values = dict[str, Any]


class Cancelled(Exception):  # noqa: N818  # not an error
    """The values of this run are no longer wanted."""


class Driver:
    """``predict(values)`` and ``measure(values, cancelled)`` are called in a thread each, with the newest values only."""

    def __init__(self, predict: Callable[[Values], None], measure: Callable[[Values, Callable[[], bool]], None]) -> None:
        self._predict, self._measure = predict, measure
        self._changed = threading.Condition()
        self._values: Values = {}
        self._posted = 0  # counts the posts
        self._wanted = 0  # the post that the ranks should run; 0: none
        self._busy = 0
        self._idle_at = {"predict": 0, "measure": 0}  # the post that each thread has dealt with
        for name, loop in (("predict", self._predicting), ("measure", self._measuring)):
            threading.Thread(target=loop, name=f"minipar lab {name}", daemon=True).start()

    def post(self, values: Values) -> None:
        """These values are the newest: predict now, run soon, end what runs."""
        with self._changed:
            self._values = dict(values)
            self._posted += 1
            self._wanted = self._posted
            self._changed.notify_all()

    def stop(self) -> bool:
        """End what runs, and start nothing until the next post; whether there was anything to end."""
        with self._changed:
            busy = self._wanted != 0 and not self._dealt_with("measure")
            self._wanted = 0
            self._changed.notify_all()
            return busy

    def settle(self, timeout: float = 60.0) -> bool:
        """Wait until the newest values are predicted and run; whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._dealt_with("predict") and self._dealt_with("measure"), timeout)

    def _dealt_with(self, name: str) -> bool:
        return self._idle_at[name] == self._posted

    def _predicting(self) -> None:
        while True:
            number, values = self._next("predict")
            self._predict(values)
            self._done("predict", number)

    def _measuring(self) -> None:
        while True:
            number, values = self._next("measure")
            if self._rested(number):
                self._measure(values, lambda n=number: self._wanted != n)  # type: ignore[misc]
            self._done("measure", number)

    def _next(self, name: str) -> tuple[int, Values]:
        with self._changed:
            self._changed.wait_for(lambda: not self._dealt_with(name))
            return self._posted, self._values

    def _rested(self, number: int) -> bool:
        """Whether the values stayed the newest for a moment, and are wanted. The first ones need not wait."""
        until = now() + (REST if number > 1 else 0.0)
        with self._changed:
            self._changed.wait_for(lambda: self._wanted != number, until - now())
            return self._wanted == number

    def _done(self, name: str, number: int) -> None:
        with self._changed:
            self._idle_at[name] = number
            self._changed.notify_all()

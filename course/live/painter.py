"""One thread that draws: at most ten times a second, always the newest state, and the last one for certain."""

from __future__ import annotations

import threading
from collections.abc import Callable

from minipar.trace import now

PERIOD = 0.1  # seconds between two frames, at least
SHARE = 0.3  # the most of one core that drawing may take


class Painter:
    """Calls ``draw`` in a thread of its own after each ``ask()``; asks that come meanwhile are one.

    ``draw`` never runs twice at once. After ``close()`` it has run once more if anything was asked for. An error in ``draw``
    ends the drawing, not the run; ``close`` raises it.
    """

    def __init__(self, draw: Callable[[], None], period: float = PERIOD) -> None:
        self._draw = draw
        self._period = period
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self.frames = 0
        self._thread = threading.Thread(target=self._loop, name="minipar painter", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Something changed: draw soon."""
        self._asked.set()

    def close(self, timeout: float = 10.0) -> None:
        """Draw what is still asked for, and end the thread."""
        self._closing.set()
        self._asked.set()  # wakes the thread
        self._thread.join(timeout)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _loop(self) -> None:
        try:
            while True:
                self._asked.wait()
                closing = self._closing.is_set()
                self._asked.clear()
                cost = self._frame()
                if closing:
                    return
                self._closing.wait(max(self._period - cost, cost / SHARE - cost))
        except BaseException as error:
            self._error = error

    def _frame(self) -> float:
        begin = now()
        self._draw()
        self.frames += 1
        return now() - begin

"""One thread that draws every view: at most ten times a second, always the newest state, and the last one for certain."""

from __future__ import annotations

import threading
from collections.abc import Callable

from minipar.trace import now

PERIOD = 0.1  # seconds between two frames, at least
SHARE = 0.3  # the most of one core that drawing may take


class Painter:
    """Draws in a thread of its own what is asked for. Asks that come while it draws or rests are one.

    A ``draw`` never runs twice at once. The thread starts with the first ask.
    """

    def __init__(self, period: float = PERIOD) -> None:
        self._period = period
        self._changed = threading.Condition()
        self._asked: dict[Callable[[], None], None] = {}  # in the order in which they were asked for
        self._errors: list[BaseException] = []
        self._drawing = False
        self._thread: threading.Thread | None = None

    def ask(self, draw: Callable[[], None]) -> None:
        """Something changed: ``draw`` soon. Returns at once."""
        with self._changed:
            self._asked[draw] = None
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="minipar painter", daemon=True)
                self._thread.start()

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until everything asked for is drawn. Raises what went wrong while drawing, if anything did."""
        with self._changed:
            self._changed.wait_for(lambda: not self._asked and not self._drawing, timeout)
            if self._errors:
                error, self._errors = self._errors[0], []
                raise error

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked)
                draws, self._asked, self._drawing = list(self._asked), {}, True
            begin = now()
            for draw in draws:
                self._attempt(draw)
            cost = now() - begin
            with self._changed:
                self._drawing = False
                self._changed.notify_all()
            threading.Event().wait(max(self._period, cost / SHARE) - cost)

    def _attempt(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except BaseException as error:
            with self._changed:
                self._errors = [*self._errors[:9], error]


painter = Painter()  # the one of this process

"""A run and the views that follow it: ``with live(run, view): run.result()``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from course.live.painter import Painter, painter

Feed = Callable[[list[Any]], None]


class Followed(Protocol):
    """What a run offers (``course.ranks.Run`` does)."""

    ranks: int

    @property
    def timeline(self) -> Any: ...

    def subscribe(self, callback: Feed) -> None: ...


class Following(Protocol):
    """A view that follows runs. All three are called in the painter's thread, and the view draws itself."""

    def begin(self, run: Any) -> None: ...

    def feed(self, events: list[Any]) -> None: ...

    def end(self, run: Any) -> None: ...


class Live:
    """Carries the events of one run to views, from now to its end.

    The reader thread only puts a batch in a queue; the painter's thread hands all that has come to the views, at most ten times a
    second. The ranks never wait for a picture. After the run's end the views get the whole timeline, and are drawn once more.
    """

    def __init__(self, run: Followed, *views: Following | Feed, by: Painter = painter) -> None:
        self.run = run
        self._error: Exception | None = None
        self._views: list[Any] = [view if hasattr(view, "feed") else _Function(view) for view in views]
        self._painter = by
        self._queue: deque[list[Any]] = deque()
        self._ended = threading.Event()
        for view in self._views:
            view.begin(run)
        run.subscribe(self._hear)

    def _hear(self, events: list[Any]) -> None:
        """The reader thread."""
        self._queue.append(events)
        self._painter.ask(self._draw)

    def _draw(self) -> None:
        """The painter's thread."""
        batches = [self._queue.popleft() for _ in range(len(self._queue))]
        events = [event for batch in batches for event in batch]
        over = any(event.kind == "end" for event in events)
        for view in list(self._views):
            self._hand(view, events, over)
        if over:
            self._ended.set()

    def _hand(self, view: Any, events: list[Any], over: bool) -> None:
        try:
            view.feed(events)
            if over:
                view.end(self.run)
        except Exception as error:
            self._views.remove(view)  # it would fail again, and the others must go on
            self._error = self._error or error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the last frame, at most ``timeout`` seconds; whether it was drawn. Raises what went wrong in a view."""
        ended = self._ended.wait(timeout)
        self._painter.flush()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return ended

    def __enter__(self) -> Live:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.wait()
        else:
            self._ended.wait(2.0)  # the cell already has something to say; do not hide it


class _Function:
    """A plain function as a view."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def begin(self, run: Any) -> None:
        """Nothing to prepare."""

    def end(self, run: Any) -> None:
        """Nothing to finish."""


def live(run: Followed, *views: Following | Feed) -> Live:
    """Draw ``run`` in ``views`` while it goes on. A view may also be a function that takes a list of events.

    As a context manager it waits for the last frame::

        with live(ranks.start(step), view, on("loss", lambda e: curve.push("loss", *e.payload))):
            ...
    """
    return Live(run, *views)


def on(kind: str, handle: Callable[[Any], None]) -> Feed:
    """A view that calls ``handle`` with each event of one kind (what a rank sent by ``emit(kind, payload)``)."""

    def feed(events: list[Any]) -> None:
        for event in events:
            if event.kind == kind:
                handle(event)

    return feed

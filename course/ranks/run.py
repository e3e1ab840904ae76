"""One function on every rank: its results, its events, its timeline."""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from course.ranks import errors, wire
from minipar.trace import Span, Timeline, now

if TYPE_CHECKING:
    from course.ranks.pool import Pool


class Event(NamedTuple):
    """Something a rank told. ``time`` is on the clock of ``minipar.trace.now`` (seconds).

    ========  ==================================================================
    kind      payload
    ========  ==================================================================
    "spans"   a list of ``Span``
    "print"   ``(stream, text)``: "stdout" or "stderr", text as it came
    "end"     "returned", "stopped" or "failed"; once, at the end, with rank -1
    other     what the rank gave to ``emit(kind, payload)``
    ========  ==================================================================
    """

    kind: str
    rank: int
    time: float
    payload: Any


class Run:
    """A function that runs, or ran, on every rank of a pool."""

    def __init__(self, pool: Pool, number: int, name: str, timeout: float | None, keeps_messages: bool = False) -> None:
        self.number, self.name, self.ranks = number, name, pool.size
        self.started = now()
        self.ended: float | None = None
        self.timeout = timeout
        self.keeps_messages = keeps_messages  # a message of this run may be received in the next one: cells
        self.bodies: list[bytes] = [b""] * pool.size
        self.told: list[int] = []  # not empty once the ranks know of it
        self.returned = 0  # ranks
        self.communicated = False
        self.error: BaseException | None = None
        self.notes: list[str] = []
        self._pool = pool
        self._source = "paced" if pool.hardware is not None else "measured"
        self._news: SimpleQueue[None] = SimpleQueue()  # wakes whoever waits: lines to print, or the end
        self._events: list[Event] = []
        self._subscribers: list[Callable[[list[Event]], None]] = []
        self._echo = Echo()
        self._results: list[Any] | None = None

    # ---- for the learner

    @property
    def done(self) -> bool:
        return self.ended is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, at most ``seconds``; whether it came. What the ranks print appears meanwhile."""
        self._refuse_in_reader()
        deadline = None if seconds is None else now() + seconds
        while True:
            if not self.done:
                with contextlib.suppress(Empty):
                    self._news.get(timeout=None if deadline is None else max(0.0, deadline - now()))
            ended = self.done
            if ended:
                self._news.put(None)  # for others who wait, before a print that may fail or be interrupted
            self._show(self._echo.take())
            if ended or (deadline is not None and now() >= deadline):
                return ended

    def result(self) -> list[Any]:
        """What the function returned, by rank. Waits; raises what went wrong; an interrupt stops the ranks."""
        try:
            self.wait()
        except KeyboardInterrupt:
            self.stop()
            self._show(self._echo.take())
            raise errors.RanksInterrupted(self.error) from None
        if self.error is not None:
            raise self.error
        if self._results is None:
            self._results = [wire.loads(body) for body in self.bodies]
        return self._results

    def stop(self) -> None:
        """End the run on all ranks; returns when they are idle. Where Python code ran, its variables survive."""
        self._refuse_in_reader()
        self._pool.interrupt(self, "stopped")
        with self._pool.lock:
            self._pool.changed.wait_for(lambda: self.done, 60)
        self._news.put(None)  # an interrupt may have taken the last one from others who wait

    @property
    def timeline(self) -> Timeline:
        """What every rank did, as far as it is known now."""
        spans = [span for event in self.events("spans") for span in event.payload]
        return Timeline(spans, self.ranks, self._source)

    def events(self, kind: str | None = None) -> list[Event]:
        """The events so far, in the order in which they came; of one kind, if given."""
        events = self._events[:]
        return [e for e in events if kind is None or e.kind == kind]

    def subscribe(self, callback: Callable[[list[Event]], None]) -> None:
        """``callback`` gets every event in batches: those so far first, then each as it comes, none twice and none left out.

        It is called from the reader thread, which serves all ranks: hand the work on and return.
        """
        self._pool.hub.post(lambda: self._add_subscriber(callback))

    def __repr__(self) -> str:
        state = "running" if not self.done else "failed" if self.error is not None else "done"
        return f"<Run {self.number} of {self.name} on {self.ranks} ranks: {state}>"

    def _refuse_in_reader(self) -> None:
        if self._pool.hub.is_current_thread:
            raise RuntimeError("a subscriber cannot wait for its own run: hand the work to another thread and return")

    # ---- for the pool

    def _add_subscriber(self, callback: Callable[[list[Event]], None]) -> None:
        self._subscribers.append(callback)
        if self._events:
            callback(self._events[:])

    def add(self, events: list[Event]) -> None:
        """Reader thread only."""
        self._events.extend(events)
        prints = [e for e in events if e.kind == "print"]
        if prints:
            self._echo.feed(prints)
            self._news.put(None)
        for callback in list(self._subscribers):
            try:
                callback(events)
            except BaseException:  # sys.exit too
                self._subscribers.remove(callback)  # it would fail again, and the run must go on
                import traceback

                traceback.print_exc()

    def finish(self, error: BaseException | None = None, how: str = "returned") -> None:
        """Reader thread only. The last event, then whoever waits goes on."""
        if self.done:
            return
        self.error = error
        self.add([Event("end", -1, now(), how)])
        self._echo.finish()
        self.ended = now()
        with self._pool.lock:  # where ``stop`` waits
            self._pool.changed.notify_all()
        self._news.put(None)

    def _show(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print in the thread that waits, so that a notebook shows it under the right cell."""
        for stream, text in lines:
            print(text, end="", file=getattr(sys, stream))
        for note in self._take_notes():
            print(f"note: {note}", file=sys.stderr)

    def _take_notes(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes


class Echo:
    """Turns what ranks print into whole lines, each tagged with its rank."""

    def __init__(self) -> None:
        self.lines: deque[tuple[str, str]] = deque()
        self._open: dict[tuple[int, str], list[str]] = {}  # the pieces of a line that has not ended

    def feed(self, prints: list[Event]) -> None:
        for event in prints:
            stream, text = event.payload
            pieces = self._open.setdefault((event.rank, stream), [])
            pieces.append(text)
            if "\n" not in text and "\r" not in text:  # joined only when it ends: a long line comes in thousands of pieces
                continue
            *whole, rest = "".join(pieces).split("\n")
            pieces[:] = [rest.rpartition("\r")[2] if len(rest) > 4096 else rest]
            if whole:
                self.lines.append((stream, "".join(self._tag(event.rank, line) for line in whole)))

    def _tag(self, rank: int, line: str) -> str:
        return f"[rank {rank}] {line.rstrip(chr(13)).rpartition(chr(13))[2]}\n"  # a progress bar: its last state

    def finish(self) -> None:
        """Lines that never ended."""
        for (rank, stream), pieces in self._open.items():
            if text := "".join(pieces):
                self.lines.append((stream, self._tag(rank, text)))
        self._open.clear()

    def take(self) -> list[tuple[str, str]]:
        """Any thread."""
        return [self.lines.popleft() for _ in range(len(self.lines))]


def spans_of(rows: Iterable[tuple[Any, ...]]) -> list[Span]:
    return list(map(Span._make, rows))


def text_decoder() -> codecs.IncrementalDecoder:
    """Any bytes become text: what is not UTF-8 shows as an escape."""
    return codecs.getincrementaldecoder("utf-8")("backslashreplace")

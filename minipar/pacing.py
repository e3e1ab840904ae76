"""Pacing: real ranks that compute real values, then wait until the modelled device would have been done.

A rank's outgoing and incoming links each serve one transfer at a time, so a transfer starts when both the sender is ready
and the link is free. All times are on the host's monotonic clock, which every process of a host shares.

*Paced time* is what a rank's own clock shows, ``Pacer.clock``. What counts on it:

* a call of ``minipar.comm`` lasts as long as the model says. What this machine takes beyond that (its own network, late wake-ups)
  makes the rank *late* against the host's clock, and does not count;
* a ``compute`` block lasts as long as the model says, or as long as the work really took if that was longer;
* all else counts as long as it really took: work outside of ``compute``, a rank that sleeps. And what holds a call up for longer
  than ``STALL`` is no overhead: the rest of it counts;
* nowhere counts what a rank queued for a processor that this machine gave to others (see ``processor``).

A late rank waits that much less later on. So where the machine is as fast as the model, who watches sees the same times as on that
clock; where it is slower, a run lasts longer to watch, and its paced times are still the model's.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from minipar.hardware import Cluster, Link, cluster
from minipar.processor import Queue, queued
from minipar.trace import host_clock, now, tracer

STALL = 0.1  # seconds


class Pacer:
    """The modelled hardware under one rank (``rank`` is global)."""

    def __init__(self, hardware: Cluster, rank: int) -> None:
        self.cluster = hardware
        self.rank = rank
        self.late = 0.0  # seconds by which the host's clock was ahead of this one's, when that was last looked at
        self._at = self._seen = now()  # a moment on this clock, and the host's when that was looked at
        self._calls = 0  # one within the other
        self._queue = Queue()
        self._queued = queued(self._queue)
        self._out_free: dict[Link, float] = defaultdict(float)  # when each outgoing link has served its last transfer
        self._in_free: dict[Link, float] = defaultdict(float)

    def clock(self) -> float:
        """Now, on the modelled hardware."""
        if not self._calls:
            before, displaced = self._seen, self._queued
            self._look()
            passed = max(0.0, self._seen - before - (self._queued - displaced))
            self._at = min(self._seen, self._at + passed)  # another thread may have looked meanwhile, and counted it too
            self.late = self._seen - self._at
        return self._at

    def _look(self) -> None:
        self._queued, self._seen = queued(self._queue), now()

    def __enter__(self) -> None:
        """A call begins: the clock stands still, but for ``wait``. A call within a call belongs to it."""
        if not self._calls:
            self.clock()
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls:
            self._look()
            self._at = min(self._seen, max(self._at, self._seen - self.late - STALL))
            self.late = self._seen - self._at

    def wait(self, times: Sequence[tuple[float, float]]) -> None:
        """Wait until all of the ``(start, end)`` are over."""
        with self:
            over = max(self._at, *(end for _, end in times))
            try:
                wait_until(over)
            finally:
                self._at = max(self._at, min(over, now()))  # an interrupt may have ended the wait

    def excuse(self, late: float) -> None:
        """Within a call: the rank that this one waits for said that it is ``late``, so this one may become so without a stall."""
        self.late = max(self.late, late)

    def send(self, to: int, nbytes: float) -> tuple[float, float]:
        """``(start, end)`` of a transfer that is handed to the link now."""
        link = self.cluster.link((self.rank, to))
        start = max(self.clock(), self._out_free[link])
        self._out_free[link] = start + link.seconds(nbytes)
        return start, self._out_free[link]

    def receive(self, source: int, nbytes: float, sent: float) -> tuple[float, float]:
        """``(start, end)`` of the arrival of a transfer whose sender started at ``sent``."""
        link = self.cluster.link((self.rank, source))
        start = max(sent, self._in_free[link])
        self._in_free[link] = start + link.seconds(nbytes)
        return start, self._in_free[link]

    def ready(self, ranks: Sequence[int]) -> float:
        """The earliest moment at which this rank could start a collective over ``ranks``."""
        link = self.cluster.link(ranks)
        return max(self.clock(), self._out_free[link], self._in_free[link])

    def collective(self, op: str, nbytes: float, ranks: Sequence[int], start: float) -> tuple[float, float]:
        """``(start, end)`` of a collective whose last member was ready at ``start``, and whose link may still serve earlier ones.

        Asynchronous calls are launched before earlier ones are waited for: only here, in the order of the waits, is it known when
        the link is free.
        """
        link = self.cluster.link(ranks)
        start = max(start, self._out_free[link], self._in_free[link])
        end = start + self.cluster.collective_seconds(op, nbytes, ranks)
        self._out_free[link] = max(self._out_free[link], end)
        self._in_free[link] = max(self._in_free[link], end)
        return start, end


_current: Pacer | None = None
_UNPACED = nullcontext()


def pace(hardware: str | Cluster | None, rank: int = 0) -> None:
    """From now on this rank's communication and ``compute`` blocks take as long as on ``hardware``; None ends it."""
    global _current
    _current = None if hardware is None else Pacer(cluster(hardware), rank)
    tracer.clock = host_clock if _current is None else _current.clock


def _start_anew() -> None:
    """In a process forked from a paced rank: what its own threads queue counts there, not what those of the rank do."""
    if _current is not None:
        pace(_current.cluster, _current.rank)


os.register_at_fork(after_in_child=_start_anew)


def current() -> Pacer | None:
    """The pacer of this process, or None when times are the machine's own."""
    return _current


def call() -> AbstractContextManager[None]:
    """The enclosed lines are a communication: in here the clock of a paced rank stands still, but for what the model says."""
    return _UNPACED if _current is None else _current


@contextmanager
def compute(flops: float = 0, nbytes: float = 0, seconds: float | None = None) -> Iterator[None]:
    """The enclosed computation takes at least its modelled time, where this rank is paced; elsewhere this does nothing.

    ``flops`` and ``nbytes`` are priced by the paced device; ``seconds`` states the time outright.
    """
    start = 0.0 if _current is None else _current.clock()
    yield
    if _current is not None:
        end = start + (_current.cluster.device_of(_current.rank).seconds(flops, nbytes) if seconds is None else seconds)
        if _current.clock() < end:
            _current.wait([(start, end)])


def wait_until(moment: float) -> None:
    remaining = moment - now()
    if remaining > 0:
        time.sleep(remaining)

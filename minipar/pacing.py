"""Pacing: real ranks that compute real values, then wait until the modelled device would have been done.

A rank's outgoing and incoming links each serve one transfer at a time, so a transfer starts when both the sender is ready
and the link is free. All times are on the host's monotonic clock, which every process of a host shares.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minipar.hardware import Cluster, Link, cluster
from minipar.trace import now


class Pacer:
    """The modelled hardware under one rank (``rank`` is global)."""

    def __init__(self, hardware: Cluster, rank: int) -> None:
        self.cluster = hardware
        self.rank = rank
        self._out_free: dict[Link, float] = defaultdict(float)  # when each outgoing link has served its last transfer
        self._in_free: dict[Link, float] = defaultdict(float)
        self._late = 0.0  # seconds by which this machine is behind the modelled one

    def clock(self) -> float:
        """Now, on the modelled hardware: a processor shared by several ranks wakes each a little late after every wait."""
        return now() - self._late

    def wait(self, began: float, times: Sequence[tuple[float, float]]) -> None:
        """Wait, since ``began``, until all of the ``(start, end)`` are over.

        What this machine is late afterwards is taken off the next start, at most one operation's time: else it would add up, hop by
        hop, to times that no modelled link takes.
        """
        start, end = max(times, key=lambda pair: pair[1])
        due = max(end, began - self._late)
        wait_until(end)
        self._late = max(0.0, min(now() - due, end - start))

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


def pace(hardware: str | Cluster | None, rank: int = 0) -> None:
    """From now on this rank's communication and ``compute`` blocks take as long as on ``hardware``; None ends it."""
    global _current
    _current = None if hardware is None else Pacer(cluster(hardware), rank)


def current() -> Pacer | None:
    """The pacer of this process, or None when times are the machine's own."""
    return _current


@contextmanager
def compute(flops: float = 0, nbytes: float = 0, seconds: float | None = None) -> Iterator[None]:
    """The enclosed computation takes at least its modelled time, where this rank is paced; elsewhere this does nothing.

    ``flops`` and ``nbytes`` are priced by the paced device; ``seconds`` states the time outright.
    """
    began, start = now(), now() if _current is None else _current.clock()
    yield
    if _current is not None:
        end = start + (_current.cluster.device_of(_current.rank).seconds(flops, nbytes) if seconds is None else seconds)
        if now() < end:
            _current.wait(began, [(start, end)])


def wait_until(moment: float) -> None:
    remaining = moment - now()
    if remaining > 0:
        time.sleep(remaining)

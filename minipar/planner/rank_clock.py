"""How long one rank takes for a list of operations, by the link model of ``minipar.pacing``: the same rules, without the waiting.

Ranks that share a stage do the same at the same time, so one of them stands for all. A product takes its device's time; a call
starts when its rank and its link are free, and the rank waits for its end unless the call is only started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from minipar.hardware import Cluster, Device, Link
from minipar.planner.job import Job, Place
from minipar.planner.recipe import Op
from minipar.planner.traffic import on_the_wire

PRODUCTS = ("product", "later")


class Piece(NamedTuple):
    """A stretch of time: of computing (``name`` is ""), or of one call."""

    name: str
    start: float
    end: float
    axis: str = ""
    nbytes: float = 0.0
    peers: tuple[int, ...] = ()


class Started(NamedTuple):
    op: Op
    ready: float  # when it could begin
    end: float  # of the message sent, where it is one


class RankClock:
    """The modelled time of the rank at ``place``; ``device`` is that of the slowest rank it waits for."""

    def __init__(self, job: Job, place: Place, cluster: Cluster, device: Device) -> None:
        self.job, self.place, self.cluster, self.device = job, place, cluster, device
        self.now = 0.0
        self.pieces: list[Piece] = []
        self.gradients: list[tuple[str, float, float, float]] = []  # axis, bytes, when they were there, when the link was free
        self._out: dict[Link, float] = defaultdict(float)  # when each link has served its last transfer, one way and the other
        self._in: dict[Link, float] = defaultdict(float)
        self._running: dict[str, Started] = {}
        self._working_since: float | None = None
        self._lines: dict[str, tuple[int, ...]] = {}

    def do(self, ops: Iterable[Op], skip: str = "") -> RankClock:
        """Go through ``ops``, leaving out those called ``skip``."""
        for op in ops:
            if op.name == skip:
                continue
            if op.name in PRODUCTS:
                self._compute(op.size)
            elif op.name == "wait":
                self._finish(self._running.pop(op.key))
            elif op.name == "arrive":
                link = self.cluster.link(self.line(op.axis))
                self.gradients.append((op.axis, op.size, self.now, self.free(link)))
            elif op.key:
                self._running[op.key] = self._start(op)
            else:
                self._finish(self._start(op))
        self._stop_working()
        return self

    def line(self, axis: str) -> tuple[int, ...]:
        if axis not in self._lines:
            self._lines[axis] = self.job.line(axis, self.place)
        return self._lines[axis]

    def free(self, link: Link) -> float:
        return max(self._out[link], self._in[link])

    def _compute(self, flops: float) -> None:
        if self._working_since is None:
            self._working_since = self.now
        self.now += self.device.seconds(flops)

    def _stop_working(self) -> None:
        if self._working_since is not None and self.now > self._working_since:
            self.pieces.append(Piece("", self._working_since, self.now))
        self._working_since = None

    def _start(self, op: Op) -> Started:
        link = self.cluster.link(self.line(op.axis))
        if op.name == "exchange":
            start = max(self.now, self._out[link])
            self._out[link] = start + link.seconds(op.size)
            return Started(op, start, self._out[link])
        return Started(op, max(self.now, self.free(link)), 0.0)

    def _finish(self, started: Started) -> None:
        op, ready, end = started
        self._stop_working()
        ranks = self.line(op.axis)
        link = self.cluster.link(ranks)
        if op.name == "exchange":  # what comes from the rank before set out when ours did
            start = max(ready, self._in[link])
            self._in[link] = start + link.seconds(op.size)
            end = max(end, self._in[link])
        else:
            start = max(ready, self.free(link))
            end = start + self.cluster.collective_seconds(op.name, op.size, ranks)
            self._out[link] = self._in[link] = end
        peers = tuple(r for r in ranks if r != self.job.rank(self.place))
        self.pieces.append(Piece(op.name, start, end, op.axis, on_the_wire(op, len(ranks)), peers))
        self.now = max(self.now, end)

"""What happened when, on every rank: spans, and the timeline they make.

A *simulated* run and a *measured* run are the same type, so a prediction and a measurement can be drawn, compared and
exported by the same code. This file needs no torch.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from minipar.intervals import covered, pack, union

COMPUTE = "compute"
COMM = "comm"
SOURCES = ("counted", "measured", "paced", "predicted")

_NOTHING = nullcontext()
now = time.monotonic  # one clock for all processes of a host, so spans of several ranks can be compared


class Span(NamedTuple):
    """One thing that one rank did, from ``start`` to ``end`` (seconds)."""

    rank: int
    lane: str  # one lane per stream: "compute" or "comm"
    name: str  # "F", "all_reduce", "optimizer"
    start: float
    end: float
    axis: str = ""  # the mesh axis a communication runs over
    nbytes: float = 0  # bytes that this rank puts on the wire
    peers: tuple[int, ...] = ()  # the global ranks at the other end
    phase: str = ""  # "forward", "backward", "optimizer"
    stage: int = -1
    microbatch: int = -1

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Breakdown(NamedTuple):
    """Where one rank's wall time went, in seconds; the three parts add up to ``wall``."""

    work: float  # computing
    communication: float  # communicating while not computing: what overlap failed to hide
    idle: float
    wall: float


@dataclass
class Timeline:
    """The spans of one run of ``ranks`` ranks. ``source`` says how they came to be: measured, paced or predicted."""

    spans: list[Span]
    ranks: int
    source: str = "measured"
    critical: list[Span] = field(default_factory=list)  # the chain of spans that sets the makespan, where known

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source is one of {', '.join(SOURCES)}, not {self.source!r}")

    def of(self, rank: int, lane: str | None = None) -> list[Span]:
        """The spans of one rank (and one lane), in order of their start."""
        spans = self._by_rank.get(rank, [])
        return [s for s in spans if lane is None or s.lane == lane]

    @cached_property
    def _by_rank(self) -> dict[int, list[Span]]:
        rows: dict[int, list[Span]] = defaultdict(list)
        for span in sorted(self.spans, key=lambda s: s.start):
            rows[span.rank].append(span)
        return dict(rows)

    @cached_property
    def start(self) -> float:
        return min((s.start for s in self.spans), default=0.0)

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first start to the last end over all ranks."""
        return max((s.end for s in self.spans), default=0.0) - self.start

    @cached_property
    def span(self) -> float:
        """Seconds of the longest of the ranks' own first-start-to-last-end."""
        return max((max(s.end for s in row) - row[0].start for row in self._by_rank.values()), default=0.0)

    def busy(self, rank: int) -> float:
        """Seconds in which ``rank`` computed."""
        return covered(union((s.start, s.end) for s in self.of(rank, COMPUTE)))

    @cached_property
    def bubble(self) -> float:
        """The idle share: ``1 - busy time / (ranks * span)``."""
        return self._idle_share(self.span)

    @cached_property
    def makespan_bubble(self) -> float:
        """The idle share of the whole run, ``1 - busy time / (ranks * makespan)``: waits before a rank's first action count too.

        A schedule may have no bubble on its ranks' own spans and still start late on some of them (ZB-V): look at both.
        """
        return self._idle_share(self.makespan)

    def _idle_share(self, seconds: float) -> float:
        return 1 - sum(self.busy(rank) for rank in range(self.ranks)) / (self.ranks * seconds) if seconds else 0.0

    def breakdown(self, rank: int, wall: float | None = None) -> Breakdown:
        """Work, communication that was not hidden behind work, and idle time of one rank.

        ``wall`` is the time to account for, in seconds; left out, it is the makespan of the whole run.
        """
        wall = self.makespan if wall is None else wall
        work = self.busy(rank)
        active = covered(union((s.start, s.end) for s in self.of(rank)))
        return Breakdown(work, active - work, wall - active, wall)

    def overlap(self, rank: int) -> float:
        """The share of ``rank``'s communication time that was hidden behind computation (0 without communication)."""
        comm = covered(union((s.start, s.end) for s in self.of(rank, COMM)))
        return 1 - self.breakdown(rank).communication / comm if comm else 0.0

    @cached_property
    def peak_activations(self) -> list[int]:
        """Per rank, the most microbatch-chunks held at once: from a forward's start to the end of its B or W."""
        return [max((held for _, held in self.live_activations(rank)), default=0) for rank in range(self.ranks)]

    def live_activations(self, rank: int) -> list[tuple[float, int]]:
        """``(seconds, microbatch-chunks held from then on)``, in order of time, for a run of pipeline actions.

        A split backward (I, then W) holds its activations until W ends.
        """
        first: dict[tuple[int, int], float] = {}
        last: dict[tuple[int, int], float] = {}
        for s in self.of(rank, COMPUTE):
            key = (s.stage, s.microbatch)
            if s.name == "F":
                first.setdefault(key, s.start)
            elif s.name in ("B", "W"):
                last[key] = max(s.end, last.get(key, s.end))
        steps = [(t, 1) for t in first.values()] + [(t, -1) for t in last.values()]
        held, curve = 0, []
        for t, step in sorted(steps):  # at equal times the release (-1) comes first
            held += step
            curve.append((t, held))
        return curve

    def bytes_by_axis(self) -> dict[str, float]:
        """Bytes put on the wire by all ranks together, for each mesh axis."""
        total: dict[str, float] = defaultdict(float)
        for s in self.spans:
            if s.lane == COMM:
                total[s.axis] += s.nbytes
        return dict(total)

    def to_chrome_trace(self, path: str | Path) -> Path:
        """Write the run as a Chrome trace, which https://ui.perfetto.dev opens. One lane per stream.

        Transfers that run at the same time are put into lanes of their own ("comm 2", ...): spans never overlap in a lane.
        """
        from minipar import chrome

        return chrome.write(self, path)

    def lanes(self, rank: int) -> list[tuple[str, list[Span]]]:
        """The rows to draw for one rank, ``(label, spans)``: no two spans of a row overlap."""
        rows: list[tuple[str, list[Span]]] = []
        for lane in sorted({s.lane for s in self.of(rank)}, key=lambda lane: (lane != COMPUTE, lane)):
            packed = pack(self.of(rank, lane))
            rows += [(lane if i == 0 else f"{lane} {i + 1}", row) for i, row in enumerate(packed)]
        return rows


def host_clock() -> float:
    """Seconds: ``now``, whatever that is by then (see ``minipar.model_time``)."""
    return now()


class Tracer:
    """Collects the spans of this process. ``minipar.comm`` adds every call; ``span`` adds computation.

    Adding and draining may happen in different threads at once: a deque's ends are safe for that.
    """

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.enabled = True
        self.clock = host_clock  # a paced rank has a clock of its own: see ``minipar.pacing``
        self.phase = ""
        self._spans: deque[Span] = deque()
        self._open: list[_Open] = []
        self._watching: tuple[list[Span], ...] = ()

    def add(
        self,
        name: str,
        lane: str,
        start: float,
        end: float,
        axis: str = "",
        nbytes: float = 0,
        peers: tuple[int, ...] = (),
        stage: int = -1,
        microbatch: int = -1,
        phase: str | None = None,
    ) -> None:
        if self.enabled:
            phase = self.phase if phase is None else phase
            span = Span(self.rank, lane, name, start, end, axis, nbytes, peers, phase, stage, microbatch)
            self._spans.append(span)
            for spans in self._watching:
                spans.append(span)

    @contextmanager
    def span(self, name: str, stage: int = -1, microbatch: int = -1) -> Iterator[None]:
        """Record the enclosed computation. Time blocked in communication is left out of it (see ``blocked``)."""
        with self.blocked():  # a span inside another splits the outer one: the compute lane never overlaps itself
            self._open.append(_Open(name, stage, microbatch, self.clock()))
            try:
                yield
            finally:
                self._close_piece(self._open.pop())

    def blocked(self) -> AbstractContextManager[None]:
        """The enclosed time is not computation of the innermost open span: it waits, or another span accounts for it."""
        outer = self._open[-1] if self._open else None
        return _NOTHING if outer is None or outer.paused else self._pause(outer)

    @contextmanager
    def _pause(self, outer: _Open) -> Iterator[None]:
        self._close_piece(outer)
        outer.paused = True
        try:
            yield
        finally:
            outer.start, outer.paused = self.clock(), False

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Label every span of the enclosed code: "forward", "backward", "optimizer"."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def __reduce__(self) -> tuple[Callable[[], Tracer], tuple[()]]:
        """Sent to another process, with a function that uses it, it becomes that process's own."""
        return _own, ()

    def _close_piece(self, piece: _Open) -> None:
        self.add(piece.name, COMPUTE, piece.start, self.clock(), stage=piece.stage, microbatch=piece.microbatch)

    @contextmanager
    def watch(self) -> Iterator[list[Span]]:
        """Yields a list that fills with the spans added in the enclosed code, whoever else drains the tracer meanwhile."""
        spans: list[Span] = []
        self._watching += (spans,)
        try:
            yield spans
        finally:
            self._watching = tuple(other for other in self._watching if other is not spans)

    def drain(self) -> list[Span]:
        """Take out the spans collected so far. Nothing added meanwhile is lost."""
        return [self._spans.popleft() for _ in range(len(self._spans))]


@dataclass
class _Open:
    name: str
    stage: int
    microbatch: int
    start: float
    paused: bool = False  # within ``blocked``


tracer = Tracer()  # this process's own


def _own() -> Tracer:
    return tracer

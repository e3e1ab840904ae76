"""Time that passes only in the model: paced ranks that do not really wait.

Every rank keeps a clock of its own that stands still while it computes and jumps when it would have waited. Ranks learn of each
other's times through their messages, as paced ranks always do (see ``pacing``). So a run takes exactly what the model says, the
same on every machine and under any load, while its values and messages are as real as ever. To be seen, a run must wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minipar import pacing, trace
from minipar.comm import pending
from minipar.hardware import Cluster


class ModelClock:
    """Seconds since the clock was made."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


@contextmanager
def model_time(hardware: str | Cluster, rank: int) -> Iterator[ModelClock]:
    """In here this rank (global) is paced as ``hardware`` without waiting. Every rank must come in, at the same place."""
    clock, before, pacer = ModelClock(), (pacing.now, pacing.wait_until), pacing.current()
    trace.now = pending.now = pacing.now = clock.now  # type: ignore[assignment]
    pacing.wait_until = clock.wait_until  # type: ignore[assignment]
    pacing.pace(hardware, rank)
    try:
        yield clock
    finally:
        pacing.pace(None if pacer is None else pacer.cluster, rank)
        trace.now = pending.now = pacing.now = before[0]  # type: ignore[assignment]
        pacing.wait_until = before[1]

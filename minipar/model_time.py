"""Time as the modelled hardware has it: paced ranks whose clock never shows what this machine is late.

Every rank keeps a clock of its own that stands still while it computes, and jumps when it would wait. Ranks learn of each other's
times through their messages, as paced ranks always do (see ``pacing``). So a run takes exactly what the model says, the same on
every machine and under any load, while its values and messages are as real as ever. With ``wait`` a rank really sleeps as well,
for a run to be watched, or timed by another clock; what this machine cannot do in time then shows on that clock only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from minipar import pacing, trace
from minipar.comm import pending
from minipar.hardware import Cluster
from minipar.products import paced_products

SHORTEST = 0.001  # seconds: the sleeps that come below are made up for by the next one


class ModelClock:
    """Seconds since the clock was made."""

    def __init__(self, wait: bool) -> None:
        self.time, self.wait, self.began = 0.0, wait, time.monotonic()

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)
        ahead = self.began + self.time - time.monotonic()
        if self.wait and ahead > SHORTEST:
            time.sleep(ahead)


@contextmanager
def model_time(hardware: str | Cluster, rank: int, wait: bool = False) -> Iterator[ModelClock]:
    """In here this rank (global) is paced as ``hardware``, product by product. Every rank must come in, at the same place."""
    clock, before = ModelClock(wait), (pacing.now, pacing.wait_until)
    trace.now = pending.now = pacing.now = clock.now
    pacing.wait_until = clock.wait_until
    try:
        with paced_products(hardware, rank):
            yield clock
    finally:
        trace.now = pending.now = pacing.now = before[0]
        pacing.wait_until = before[1]

"""Time as the modelled hardware has it: paced ranks whose clock never shows what this machine is late.

Every rank keeps a clock of its own that stands still while it computes, and jumps when it would wait. Ranks learn of each other's
times through their messages, as paced ranks always do (see ``pacing``). So a run takes exactly what the model says, the same on
every machine and under any load, while its values and messages are as real as ever. With ``wait`` a rank really sleeps as well,
for a run to be watched, or timed by another clock; what this machine cannot do in time then shows on that clock only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from minipar import pacing, trace
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
    clock, before = ModelClock(wait), pacing.current()
    try:
        with (
            _everywhere("now", trace.now, clock.now),
            _everywhere("queued", pacing.queued, lambda _: 0.0),
            _everywhere("wait_until", pacing.wait_until, clock.wait_until),
            paced_products(hardware, rank),
        ):
            yield clock
    finally:
        if before is not None:
            pacing.pace(before.cluster, before.rank)  # from now on by the machine's clock, not from where the modelled one stood


@contextmanager
def _everywhere(name: str, old: Any, new: Any) -> Iterator[None]:
    """In here ``name`` is ``new`` in every module of minipar that has it as ``old``, also in those that are imported meanwhile."""
    for module in _holders(name, old):
        setattr(module, name, new)
    try:
        yield
    finally:
        for module in _holders(name, new):
            setattr(module, name, old)


def _holders(name: str, value: Any) -> list[ModuleType]:
    own = [module for key, module in list(sys.modules.items()) if key.partition(".")[0] == "minipar"]
    return [module for module in own if vars(module).get(name) is value]

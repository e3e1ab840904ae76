"""What the labs' ranks do. Ranks import this file, so it must not import views: that takes each a second."""

from __future__ import annotations

import os
import signal
import time

import torch

from minipar import comm
from minipar.collectives import ALL_REDUCE
from minipar.trace import now

STEPS = 6
PAUSE = 0.15  # seconds of work before each all-reduce

RAISES, KILLED, SKIPS, LOOPS = "raises an error", "is killed", "skips its all-reduce", "loops for ever"


def work(which: int, what: str, when: int) -> int:
    """On each rank: a few steps, each a bit of work and an all-reduce. In step ``when`` it happens to rank ``which``."""
    from course.ranks import emit

    axis = comm.world()
    total = torch.ones(1)
    for step in range(STEPS):
        time.sleep(PAUSE)
        if (axis.rank, step) == (which, when):
            emit("mishap", now())
            time.sleep(0.05)  # the message leaves before the rank does
            if mishap(what):
                continue
        total = comm.all_reduce(total, axis)
    return STEPS


def mishap(what: str) -> bool:
    """It happens; True: the rank goes on without its all-reduce."""
    if what == RAISES:
        raise ValueError("the loss is not a number")
    if what == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    while what == LOOPS:
        time.sleep(0.01)
    return True


def all_reduce_once(algorithm: str, elements: int) -> bool:
    """On each rank: one all-reduce of ``elements`` float32; whether the sum came out right."""
    axis = comm.world()
    x = torch.full((elements,), float(axis.rank + 1))
    comm.barrier(axis)
    ALL_REDUCE[algorithm](x, axis)
    return bool((x == axis.size * (axis.size + 1) / 2).all())

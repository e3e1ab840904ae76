"""Two things timed alternately in one run, so that whatever else the machine does meets both alike."""

from __future__ import annotations

import gc
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several ranks share few cores
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist

from minipar.trace import now, tracer


class Pair(NamedTuple):
    """Seconds of each, medians over the rounds; ``ratio`` is the median of the ratios within one round.

    In 95 of 100 such runs it lies between ``low`` and ``high``, as far as rounds are independent.
    """

    first: float
    second: float
    ratio: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        spread = f"({self.low:.3f} to {self.high:.3f}, {self.rounds} rounds)"
        return f"{self.first * 1e3:9.2f} ms  {self.second * 1e3:9.2f} ms  ratio {self.ratio:.3f}  {spread}"


def on_ranks(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """``fn(*args)`` on ``n`` plain processes with a process group and nothing else: no notebook, no watchdog."""
    with tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.start_processes(_rank, (n, folder, fn, args), nprocs=n, join=False, start_method="fork")
        while not context.join():
            pass
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(n)]


def _rank(rank: int, n: int, folder: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    gc.freeze()  # as in every rank of the course: a collection of all that torch brings along takes a fifth of a second
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", n), rank=rank, world_size=n)
    tracer.rank = rank
    torch.save(fn(*args), f"{folder}/{rank}.pt")
    dist.barrier()


def alternate(first: Callable[[], Any], second: Callable[[], Any], rounds: int, warm: int = 3) -> list[tuple[float, float]]:
    """On every rank: both in turns, in changing order. Seconds from a common start until this rank was done."""
    times = []
    for i in range(warm + rounds):
        pair = [0.0, 0.0]
        for which in (0, 1) if i % 2 else (1, 0):
            tracer.drain()
            if dist.is_initialized():
                dist.barrier()
            start = now()
            (first, second)[which]()
            pair[which] = now() - start
        times.append((pair[0], pair[1]))
    return times[warm:]


def summary(everyones: list[list[tuple[float, float]]]) -> Pair:
    """A round takes as long as its slowest rank."""
    return paired([(max(a for a, _ in each), max(b for _, b in each)) for each in zip(*everyones, strict=True)])


def paired(rounds: Sequence[tuple[float, float]]) -> Pair:
    """The two sides of each round against each other."""
    firsts, seconds = zip(*rounds, strict=True)
    ratios = sorted(a / b for a, b in rounds)
    aside = math.ceil(0.98 * math.sqrt(len(ratios)))  # of the order: 1.96 standard deviations of how many lie below the median
    low, high = ratios[max(0, len(ratios) // 2 - aside)], ratios[min(len(ratios) - 1, len(ratios) // 2 + aside)]
    return Pair(statistics.median(firsts), statistics.median(seconds), statistics.median(ratios), low, high, len(ratios))

"""Paced ranks against the link model, 8 ranks on this machine: ``python -m tests.benchmarks.bench_pacing [steps] [MB ...]``.

Predicted: the closed form or the simulated timeline. Paced: first start to last end on the ranks' own clocks, as timelines show it.
Watched: the same run by this machine's clock, from the moment at which all began until the last rank was done. Unpaced: the same
calls without pacing, in turns with the paced ones; a machine that needs longer than the model for them cannot show them in time.
Medians. Target: paced within 5 % at 20 ms and more.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from minipar import Mesh, comm, pacing
from minipar.collectives import ALL_REDUCE, costs
from minipar.data_parallel import Buckets, predicted
from minipar.hardware import PRESETS, Cluster, Link
from minipar.trace import now, tracer
from tests.benchmarks.pairs import on_ranks

N = 8
LINK = Link("bench", latency=1e-3, bandwidth=20e6)
HARDWARE = Cluster("bench", PRESETS["cpu"].device, LINK, LINK, ranks_per_node=1)
LAYERS, WIDTH = 6, 200  # a layer's gradient is 160 kB
FORWARD, BACKWARD = 0.010, 0.020  # seconds a layer
WARM, ROUNDS = 1, 5
LONGEST = 2.0  # seconds: no algorithm that is slower is run


class Round(NamedTuple):
    """One rank's, in seconds: when all began, its first start and last end, when it was done, and how long it took unpaced."""

    began: float
    first: float
    last: float
    done: float
    unpaced: float


def timed(run: Callable[[], object], rounds: int) -> list[Round]:
    """The rounds of this rank, each paced and not paced in turns."""
    found = []
    for _ in range(WARM + rounds):
        began = together()
        with tracer.watch() as spans:
            run()
        done = now()
        common = together()
        comm.pace(None)
        run()
        found.append(Round(began, min(s.start for s in spans), max(s.end for s in spans), done, now() - common))
    tracer.drain()
    return found[WARM:]


def together() -> float:
    """From here on paced. Returns the end of a barrier: the same moment on every rank's clock, and each slept until then."""
    dist.barrier()
    comm.pace(HARDWARE, comm.world().rank)
    comm.barrier()
    return tracer.clock()


def collective(algorithm: str, elements: int, rounds: int) -> list[Round]:
    x = torch.zeros(elements)
    if algorithm == "comm.all_reduce":
        return timed(lambda: comm.all_reduce_(x), rounds)
    return timed(lambda: ALL_REDUCE[algorithm](x, None), rounds)


class Layer(torch.autograd.Function):
    """A layer that takes its time in both directions."""

    @staticmethod
    def forward(ctx, weight, x):
        with tracer.span("F"), pacing.compute(seconds=FORWARD):
            return x + weight.sum()

    @staticmethod
    def backward(ctx, grad):
        with tracer.span("B"), pacing.compute(seconds=BACKWARD):
            return torch.ones(WIDTH, WIDTH), grad


def overlapped(bucket_bytes: float, rounds: int) -> list[Round]:
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(WIDTH, WIDTH)) for _ in range(LAYERS))
    buckets = Buckets(model, Mesh(dp=N), bucket_bytes)
    for p in model:  # the first step only finds the order
        p.grad = None
    with buckets.gather():
        sum(p.sum() for p in model).backward()

    def step() -> None:
        x = torch.zeros((), requires_grad=True)
        for p in model:
            p.grad = None
        with buckets.gather():
            for p in model:
                x = Layer.apply(p, x)
            x.backward()

    return timed(step, rounds)


def report(what: str, expected: float, everyones: list[list[Round]]) -> None:
    rounds = list(zip(*everyones, strict=True))
    paced = statistics.median(max(r.last for r in each) - min(r.first for r in each) for each in rounds)
    watched = statistics.median(max(r.done for r in each) - min(r.began for r in each) for each in rounds)
    unpaced = statistics.median(max(r.unpaced for r in each) for each in rounds)
    off = [f"{seconds * 1e3:7.1f} ms {100 * (seconds / expected - 1):+6.1f} %" for seconds in (paced, watched)]
    print(f"{what:30} {expected * 1e3:7.1f} ms   {off[0]}   {off[1]}   {unpaced * 1e3:6.1f} ms", flush=True)


def run_collectives(nbytes: int) -> None:
    for algorithm in ("ring", "segmented ring", "recursive halving", "tree", "naive"):
        expected = costs.predict(algorithm, N, nbytes // 4, HARDWARE).makespan
        if expected < LONGEST:
            report(f"{algorithm}, {nbytes / 1e6:g} MB", expected, on_ranks(N, collective, algorithm, nbytes // 4, ROUNDS))
    expected = HARDWARE.collective_seconds("all_reduce", nbytes, range(N))
    report(f"comm.all_reduce, {nbytes / 1e6:g} MB", expected, on_ranks(N, collective, "comm.all_reduce", nbytes // 4, ROUNDS))


def run_steps() -> None:
    layer_bytes = [WIDTH * WIDTH * 4] * LAYERS
    for layers in (1, 2, 6):
        step = predicted.timeline([FORWARD] * LAYERS, [BACKWARD] * LAYERS, layer_bytes, layers * layer_bytes[0], N, HARDWARE)
        everyones = on_ranks(N, overlapped, layers * layer_bytes[0], ROUNDS)
        report(f"step of {LAYERS} layers, buckets of {layers}", step.makespan, everyones)


def main() -> None:
    title = f"{N} ranks, {LINK.latency * 1e3:.0f} ms + bytes / 20 MB/s"
    print(f"{title:31} predicted   {'paced':19}   {'watched (measured)':19}   unpaced (measured)")
    for part in sys.argv[1:] or ("0.16", "0.8", "3.2", "steps"):
        if part == "steps":
            run_steps()
        else:
            run_collectives(round(float(part) * 1e6))


if __name__ == "__main__":
    main()

"""Paced ranks against the link model, 8 ranks on this machine: ``python -m tests.benchmarks.bench_pacing``.

Predicted: the closed form or the simulated timeline. Paced: what real ranks took, medians. Target: within 5 % at 20 ms and more.
"""

from __future__ import annotations

import statistics

import torch

from minipar import Mesh, comm, pacing
from minipar.collectives import ALL_REDUCE, costs
from minipar.data_parallel import Buckets, predicted
from minipar.hardware import PRESETS, Cluster, Link
from minipar.trace import now
from tests.benchmarks.pairs import on_ranks

N = 8
LINK = Link("bench", latency=1e-3, bandwidth=20e6)
HARDWARE = Cluster("bench", PRESETS["cpu"].device, LINK, LINK, ranks_per_node=1)
LAYERS, WIDTH = 6, 200  # a layer's gradient is 160 kB
FORWARD, BACKWARD = 0.010, 0.020  # seconds a layer


def timed(run, rounds: int) -> list[float]:
    """Seconds of each round from a common start, on this rank."""
    comm.pace(HARDWARE, comm.world().rank)
    times = []
    for _ in range(rounds):
        comm.barrier()
        start = now()
        run()
        times.append(now() - start)
    return times


def collective(algorithm: str, elements: int, rounds: int) -> list[float]:
    x = torch.zeros(elements)
    if algorithm == "comm.all_reduce":
        return timed(lambda: comm.all_reduce_(x), rounds)
    return timed(lambda: ALL_REDUCE[algorithm](x, None), rounds)


class Layer(torch.autograd.Function):
    """A layer that takes its time in both directions."""

    @staticmethod
    def forward(ctx, weight, x):
        with pacing.compute(seconds=FORWARD):
            return x + weight.sum()

    @staticmethod
    def backward(ctx, grad):
        with pacing.compute(seconds=BACKWARD):
            return torch.ones(WIDTH, WIDTH), grad


def overlapped(bucket_bytes: float, rounds: int) -> list[float]:
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


def report(what: str, expected: float, everyones: list[list[float]]) -> None:
    got = statistics.median(max(each) for each in zip(*everyones, strict=True))
    print(f"{what:44} {expected * 1e3:8.1f} ms   {got * 1e3:8.1f} ms   off by {100 * (got / expected - 1):+.1f} %")


def main() -> None:
    print(f"{N} ranks, {LINK.latency * 1e3:.0f} ms + bytes / 20 MB/s        predicted        paced")
    for nbytes in (160_000, 800_000, 3_200_000):
        for algorithm in ("ring", "segmented ring", "recursive halving", "tree", "naive"):
            expected = costs.predict(algorithm, N, nbytes // 4, HARDWARE).makespan
            if expected < 2:
                report(f"{algorithm}, {nbytes / 1e6} MB", expected, on_ranks(N, collective, algorithm, nbytes // 4, 5))
        expected = HARDWARE.collective_seconds("all_reduce", nbytes, range(N))
        report(f"comm.all_reduce, {nbytes / 1e6} MB", expected, on_ranks(N, collective, "comm.all_reduce", nbytes // 4, 5))
    layer_bytes = [WIDTH * WIDTH * 4] * LAYERS
    for layers in (1, 2, 6):
        step = predicted.timeline([FORWARD] * LAYERS, [BACKWARD] * LAYERS, layer_bytes, layers * layer_bytes[0], N, HARDWARE)
        everyones = on_ranks(N, overlapped, layers * layer_bytes[0], 5)
        report(f"step of {LAYERS} layers, buckets of {layers}", step.makespan, everyones)


if __name__ == "__main__":
    main()

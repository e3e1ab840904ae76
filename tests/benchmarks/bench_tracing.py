"""A training step with tracing on against off, in turns in one run: ``python -m tests.benchmarks.bench_tracing``.

Seconds measured, of the slowest rank and of the processors: what tracing computes takes processor time wherever it is hidden, and
processor time moves less from run to run. Target: at most 3 % more.
"""

from __future__ import annotations

import sys
import time

import torch

from minipar import GPT, GPTConfig, Mesh, comm, data
from minipar.data_parallel import Overlapped
from minipar.trace import tracer
from minipar.train import one_step
from tests.benchmarks.pairs import alternate, on_ranks, paired, summary

SIZES = {  # model, rows, rounds
    "the default of minipar run": (GPTConfig(layers=4, width=128, heads=4, seq=128), 8, 100),
    "a small one, many buckets": (GPTConfig(layers=4, width=64, heads=4, seq=32), 8, 250),
}
WARM = 5

Times = list[tuple[float, float]]


def on_against_off(name: str) -> tuple[Times, Times, int]:
    """Seconds of each round, processor seconds of each round (all threads of this rank), spans of one step."""
    config, rows, rounds = SIZES[name]
    mesh = Mesh(dp=comm.world().size)
    layout = Overlapped(GPT(config), mesh, bucket_bytes=1e5)
    optimizer = torch.optim.AdamW(layout.model.parameters())
    batch = data.batch(0, rows, config.seq)
    processor: dict[bool, list[float]] = {True: [], False: []}

    def step(traced: bool) -> None:
        tracer.enabled = traced
        began = time.process_time()
        one_step(layout, optimizer, batch, mesh)
        processor[traced].append(time.process_time() - began)

    seconds = alternate(lambda: step(True), lambda: step(False), rounds, WARM)
    tracer.drain()
    step(True)
    return seconds, list(zip(processor[True], processor[False], strict=False))[WARM : WARM + rounds], len(tracer.drain())


def main(n: int) -> None:
    print(f"a training step on {n} ranks:                          traced    not traced")
    for name in SIZES:
        seconds, processor, spans = zip(*on_ranks(n, on_against_off, name), strict=True)
        summed = [(sum(a for a, _ in each), sum(b for _, b in each)) for each in zip(*processor, strict=True)]
        print(f"{name}, {spans[0]} spans a rank (counted)")
        print(f"    until the slowest rank is done (measured)  {summary(list(seconds))}")
        print(f"    processor time of all ranks (measured)     {paired(summed)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)

"""A training step with tracing on against off, in turns in one run: ``python -m tests.benchmarks.bench_tracing``.

Seconds measured. Target: at most 3 % more.
"""

from __future__ import annotations

import sys

import torch

from minipar import GPT, GPTConfig, Mesh, comm, data
from minipar.data_parallel import Overlapped
from minipar.trace import tracer
from minipar.train import one_step
from tests.benchmarks.pairs import alternate, on_ranks, summary

SIZES = {
    "the default of minipar run": (GPTConfig(layers=4, width=128, heads=4, seq=128), 8),
    "a small one, many buckets": (GPTConfig(layers=4, width=64, heads=4, seq=32), 8),
}
ROUNDS = 40


def on_against_off(name: str) -> list[tuple[float, float]]:
    config, rows = SIZES[name]
    mesh = Mesh(dp=comm.world().size)
    layout = Overlapped(GPT(config), mesh, bucket_bytes=1e5)
    optimizer = torch.optim.AdamW(layout.model.parameters())
    batch = data.batch(0, rows, config.seq)

    def step(traced: bool) -> None:
        tracer.enabled = traced
        one_step(layout, optimizer, batch, mesh)

    return alternate(lambda: step(True), lambda: step(False), ROUNDS)


def main(n: int) -> None:
    print(f"a training step on {n} ranks:    traced      not traced")
    for name in SIZES:
        print(f"{name:28} {summary(on_ranks(n, on_against_off, name))}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)

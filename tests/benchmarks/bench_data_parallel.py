"""A data parallel step with overlap against torch DDP, in turns in one run: ``python -m tests.benchmarks.bench_data_parallel``.

The same GPT of more than ten million parameters, the same rows, two ranks on this machine's processors; seconds measured.
Forward, backward and gradient sync are timed; the optimizer is the same for both and left out. Target: ratio <= 1.0.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from minipar import GPT, GPTConfig, Mesh, comm, data
from minipar.data_parallel import Average, Overlapped
from tests.benchmarks.pairs import alternate, on_ranks, summary

CONFIG = GPTConfig(layers=6, width=384, heads=6, seq=64)
ROWS = 4
ROUNDS = 16


def ours_against_ddp(kind: str, as_view: bool, bucket_mb: float) -> list[tuple[float, float]]:
    mesh = Mesh(dp=comm.world().size)
    model = GPT(CONFIG)
    layout = Average(model, mesh) if kind == "average" else Overlapped(model, mesh, bucket_mb * 1e6)
    theirs = GPT(CONFIG)
    ddp = DistributedDataParallel(theirs, gradient_as_bucket_view=as_view)
    batch = data.batch(0, ROWS, CONFIG.seq)
    mine = batch.rows_of(mesh["dp"])

    def ours() -> None:
        model.zero_grad()
        layout.step(batch)

    def torchs() -> None:
        theirs.zero_grad()
        torch.nn.functional.cross_entropy(ddp(mine.inputs).flatten(0, 1), mine.targets.flatten()).backward()

    times = alternate(ours, torchs, ROUNDS)
    for a, b in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)  # the same work was done
    return times


def main(n: int) -> None:
    parameters = sum(p.numel() for p in GPT(CONFIG).parameters())
    print(f"GPT of {parameters / 1e6:.1f} M parameters, {ROWS} rows of {CONFIG.seq} on {n} ranks:   ours     torch DDP")
    for as_view in (False, True):
        for kind, bucket_mb in (("average", 0), ("buckets", 1), ("buckets", 4), ("buckets", 25)):
            pair = summary(on_ranks(n, ours_against_ddp, kind, as_view, bucket_mb))
            size = f"of {bucket_mb} MB" if bucket_mb else "after backward"
            print(f"{kind:8} {size:14} against gradient_as_bucket_view={as_view!s:5} {pair}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)

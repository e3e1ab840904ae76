"""Ring attention against the same attention on one rank: ``python tests/benchmarks/bench_context_parallel.py``.

One sequence, forward and backward. Times and peaks are measured on this machine (the ranks share its cores), what autograd keeps
is counted. Every number is also given as a share of the one-rank run.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import statistics
import time

import torch

from course import Ranks
from minipar import Mesh, comm
from minipar.context_parallel import Ring, TokenLayout, ring_attention

SEQ, HEADS, HEAD_DIM, TIMES = 2048, 4, 32, 7


def tensors(seq: int) -> list[torch.Tensor]:
    return [torch.randn(1, HEADS, seq, HEAD_DIM, requires_grad=True) for _ in range(3)]


def run(layout: TokenLayout) -> tuple[float, int, int]:
    """Seconds of the slowest rank (median), bytes kept for backward, and growth of the process's peak memory in bytes."""
    axis = Mesh(cp=layout.ranks)["cp"]
    ring = Ring(axis, layout)
    attend(ring, SEQ // 8)  # imports and warm caches
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = attend(ring, SEQ)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    times = []
    for _ in range(TIMES):
        comm.barrier()
        start = time.perf_counter()
        attend(ring, SEQ)
        comm.barrier()
        times.append(time.perf_counter() - start)
    return statistics.median(times), kept, peak


def attend(ring: Ring, seq: int) -> int:
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    q, k, v = tensors(seq // ring.axis.size)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = ring_attention(q, k, v, ring)
    out.sum().backward()
    return sum(kept.values())


def main() -> None:
    print(f"one sequence of {SEQ} tokens, {HEADS} heads of {HEAD_DIM}, causal, forward and backward, {os.cpu_count()} cores")
    first: list[float] = []
    for method, n in (("zigzag", 1), ("ring", 2), ("zigzag", 2), ("ring", 4), ("zigzag", 4)):
        with Ranks(n) as ranks:  # fresh processes: a peak never falls
            results = ranks.run(run, TokenLayout.of(method, n))
        row = [max(values) for values in zip(*results, strict=True)]
        first = first or row
        shares = [value / one for value, one in zip(row, first, strict=True)]
        print(
            f"  {method:<7} {n} ranks   time {row[0] * 1e3:7.1f} ms ({shares[0]:.2f})   "
            f"kept {row[1] / 2**20:6.2f} MiB ({shares[1]:.3f})   peak + {row[2] / 2**20:6.1f} MiB ({shares[2]:.2f})"
        )


if __name__ == "__main__":
    main()

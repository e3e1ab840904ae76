"""Our all-reduces, written from messages, against gloo's own: ``python -m tests.benchmarks.bench_collectives [ranks]``.

Plain processes on this machine, seconds measured, bytes counted. Target: segmented ring <= 1.0 of gloo at 4 ranks. Its second
row is the same ring by torch's messages alone, without minipar's checks and traces: what a ring written in Python takes at least.

Why 16 MB takes longer than gloo's own (`perf` on 4 ranks and 2 cores: 82 ms of CPU time in all for gloo, 83 for the messages
alone): gloo cuts into 24 messages of 1 MB, which stay in the cache, so its socket copies take 22 ms and those of our 6 messages 28;
adding takes 6 ms in both. But from Python a message costs each rank 0.1 ms more than inside gloo, in code that the data has pushed
out of the cache: 18 messages more would cost the 7 ms that they could save.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from minipar import comm
from minipar.collectives import ALL_REDUCE
from minipar.mesh import Axis
from minipar.trace import tracer
from tests.benchmarks.pairs import alternate, on_ranks, summary

ROUNDS = {1_000_000: 200, 16_000_000: 60}


class Bare:
    """Messages under way, and nothing else: in place of ``comm.async_exchange``."""

    def __init__(self, sends: list[tuple[torch.Tensor, int]], recvs: list[tuple[torch.Tensor, int]], axis: Axis) -> None:
        self._kept, group = sends, axis.group
        self._works = [group.recv([x], peer, 0) for x, peer in recvs] + [group.send([x], peer, 0) for x, peer in sends]

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def against_gloo(algorithm: str, nbytes: int, rounds: int, bare: bool = False) -> list[tuple[float, float]]:
    if bare:
        comm.async_exchange = Bare  # in this process, which ends with the measurement
    x, y = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    return alternate(lambda: ALL_REDUCE[algorithm](x, None), lambda: dist.all_reduce(y), rounds)


def bytes_sent(algorithm: str, nbytes: int) -> float:
    with tracer.watch() as spans:
        ALL_REDUCE[algorithm](torch.zeros(nbytes // 4), None)
    return sum(span.nbytes for span in spans)


def main(n: int, algorithms: list[str]) -> None:
    print(f"all-reduce on {n} ranks:    ours           gloo's own")
    for nbytes, rounds in ROUNDS.items():
        for algorithm in algorithms:
            sent = max(on_ranks(n, bytes_sent, algorithm, nbytes))
            pair = summary(on_ranks(n, against_gloo, algorithm, nbytes, rounds))
            print(f"{nbytes / 1e6:3.0f} MB {algorithm:19} {pair}  {sent / nbytes:.3f} of the data sent by the busiest rank")
            if algorithm == "segmented ring":
                print(f"{'':5}its messages alone  {summary(on_ranks(n, against_gloo, algorithm, nbytes, rounds, True))}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4, sys.argv[2:] or list(ALL_REDUCE))

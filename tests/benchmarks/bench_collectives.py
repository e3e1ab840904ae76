"""Our all-reduces, written from messages, against gloo's own: ``python -m tests.benchmarks.bench_collectives [ranks]``.

Plain processes on this machine, seconds measured, bytes counted. Target: segmented ring <= 1.0 of gloo at 4 ranks. Its second
row is the same ring by torch's messages alone, without minipar's checks and traces: what a ring written in Python takes at least.

Why 16 MB takes longer than gloo's own: medians of 100 calls of each in random order, 4 ranks on 2 cores. Who had the cores, in
milliseconds of a core a call, is counted by `perf record -a -e sched:sched_switch`:

                                wall  ratio (95 %)       threads of sockets   of the rank   of the kernel's network   idle
    gloo's own                  41.9                                   41.3          23.7                       1.0    8.9
    segmented ring              45.3  1.08 (1.03-1.13)                 46.3          25.1                       4.3    7.0
    its messages alone          44.5  1.07 (1.02-1.11)                 44.6          22.8                       4.1    6.7
    gloo's messages, from here  45.2  1.09 (1.04-1.15)                 43.9          29.7                       1.2    6.7
    the same in 2 MB            43.5  1.06 (1.01-1.10)                 44.0          25.1                       2.8    6.3

No core waits longer than in gloo: there is more to do. Few long messages (6 of 4 MB) cost the kernel more a byte than gloo's 24
of 1 MB. The last two rows send in gloo's own order, started from lists made before the call: 24 messages cost the ranks 6 ms of a
core more than inside gloo, 0.06 ms each. Making the lists, and what `minipar.comm` checks and traces, come on top of that: none
of these gets below 1.0, and 2 MB loses by it what it wins.

What is not the reason: page faults (200 to 300 a rank and call, as malloc gives the scratch memory back: kept scratch has none and
is no faster), and whether both sides sum one tensor or each its own (1.21 and 1.22 in one run). Either side takes some 5 % less
after a call of its own kind; `alternate` puts each as often behind itself as behind the other, so more varied company, as in the
table, reads nearer to 1.
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

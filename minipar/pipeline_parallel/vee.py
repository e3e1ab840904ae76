"""ZB-V and DualPipe-V: two chunks a rank, placed like a V, so that every microbatch starts and ends on rank 0.

    stages     rank 0   0 7        a microbatch goes down through the first chunks (here D)
               rank 1   1 6        and up again through the second ones (U): the last rank passes it on to itself,
               rank 2   2 5        and rank 0, which is the first to be filled, is the first to get a backward.
               rank 3   3 4

Every rank then holds as many activations as any other. Both schedules are a few loops, counted by rank; with fewer microbatches
than it takes to fill the V, the missing ones are left out of the loops.
"""

from __future__ import annotations

from minipar.pipeline_parallel.action import Action
from minipar.pipeline_parallel.row import Row
from minipar.pipeline_parallel.schedule import Schedule, assemble, vee


def zb_v(ranks: int, microbatches: int) -> Schedule:
    """ZB-V (Qi et al. 2023; Qi et al. 2024): no bubble on any rank's own span where F = I = W and m is at least 2p - 1.

        rank 0   D0 D1 D2 U0 u0 w0 U1 u1 w1 D3 d0 w0 U2 u2 w2 ...      capitals: forwards down and up; d, u: their input
        rank 1   .  D0 U0 D1 U1 u0 w0 D2 d0 w0 U2 u1 w1 D3 d1 ...      gradients; w: the weight gradient of what stands before

    A rank holds at most 2p chunks, which is p microbatches: as much as rank 0 does in 1F1B.
    """
    rows = [_zb_v_row(rank, ranks, max(microbatches, 2 * ranks - 1)) for rank in range(ranks)]
    return assemble("zb-v", rows, microbatches, vee(ranks))


def _zb_v_row(rank: int, ranks: int, microbatches: int) -> list[Action]:
    down, up = rank, 2 * ranks - 1 - rank
    row = Row()
    for _ in range(2 * (ranks - rank) - 1):  # fill: until the first microbatch comes up again
        row.add("F", down)
    for _ in range(rank):
        row.add("F", up, down)
    for _ in range(ranks - rank):  # the first backwards, of the second chunk
        row.add("F", up)
        row.add("I", up)
        row.pay()
    while row.forwards(up) < microbatches:  # steady: six actions a microbatch, none of them waits
        if row.forwards(down) < microbatches:
            row.add("F", down)
        row.add("I", down)
        row.pay()
        row.add("F", up)
        row.add("I", up)
        row.pay()
    for _ in range(rank):  # drain: the ranks before wait for input gradients, nobody for weights
        row.add("I", down, up)
    for _ in range(ranks - rank):
        row.add("I", down)
        row.pay()
    row.pay(len(row.owed))
    return row.actions


def dualpipe_v(ranks: int, microbatches: int) -> Schedule:
    """DualPipe-V (DeepSeek-AI 2025): eight counted loops; in the steady part every forward stands beside a full backward.

        rank 0   D0 D1 D2 U0 u0 w0 U1 D3 u1u1 U2 d0d0 u2u2 U3 ...      u1u1, d0d0: full backwards
        rank 1   .  D0 U0 D1 U1 D2 u0u0 U2 d0d0 D3 u1u1 U3 d1d1 ...    F and B side by side: one can communicate while the other
                                                                       computes

    Bubble on each rank's own span, for costs of a chunk and from m = 2p on: (p-1)(F&B + B - 3W) where the two side by side start
    and end as one, F&B (DeepSeek-V3 2024, table 2, where PP = 2p); one behind the other, as ``simulate`` has them, a rank passes
    its F on before its B is done: (p-1)(F+I-W) for F = I. A rank holds at most 2p + 1 chunks.
    """
    rows = [_dualpipe_v_row(rank, ranks, max(microbatches, 2 * ranks)) for rank in range(ranks)]
    return assemble("dualpipe-v", rows, microbatches, vee(ranks))


def _dualpipe_v_row(rank: int, ranks: int, microbatches: int) -> list[Action]:
    down, up, behind = rank, 2 * ranks - 1 - rank, ranks - rank - 1  # behind: how many ranks come after this one
    row = Row()
    for _ in range(2 * behind):  # 1. fill
        row.add("F", down)
    for _ in range(rank + 1):  # 2. down and up
        row.add("F", down, up)
    for _ in range(behind):  # 3. the first backwards, split: the next rank waits for the input gradient
        row.add("I", up)
        row.pay()
        row.add("F", up)
    for _ in range(microbatches - 2 * ranks + rank + 1):  # 4. steady: a forward one way beside a backward the other way
        row.add("F", down)
        row.add("B", up)
        row.add("F", up)
        row.add("B", down)
    for _ in range(behind):  # 5. forwards remain for the way up only
        row.add("B", up)
        row.add("F", up)
        row.add("B", down)
    for i in range(2 * (rank + 1)):  # 6. backwards only; the second half of them split
        row.add("B" if i <= rank else "I", (up, down)[i % 2])
    for _ in range(behind):  # 7. weight gradients fill the gaps
        row.pay()
        row.add("I", down)
    row.pay(len(row.owed))  # 8.
    return row.actions

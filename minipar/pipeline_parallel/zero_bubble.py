"""ZB-H1: split the backward, and do the half that nobody waits for in what was the bubble.

Only the input gradient (I) is waited for by the stage before; the weight gradient (W) may come at any time. So rank r puts its
weight gradients off by r microbatches. No rank holds more than p microbatches, as rank 0 does in 1F1B.

    rank 0   F0 F1 .  I0 W0 F2 I1 W1 F3 I2 W2 I3 W3           bubble (p-1)(F+I-W), on each rank's own span
    rank 1   .  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3           activations min(p, m) on every rank

(Qi et al. 2023, section 2.)
"""

from __future__ import annotations

from minipar.pipeline_parallel.action import Action
from minipar.pipeline_parallel.schedule import Schedule, one_stage_each


def zb_h1(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1 for any number of microbatches; the closed form of the bubble holds from m = p on."""
    rows = [_row(rank, ranks, microbatches) for rank in range(ranks)]
    return Schedule(rows, microbatches, one_stage_each(ranks), "zb-h1")


def _row(rank: int, ranks: int, microbatches: int) -> list[Action]:
    warmup = min(ranks - rank - 1, microbatches)
    row = [Action("F", rank, k) for k in range(warmup)]
    for k in range(microbatches):
        if k + warmup < microbatches:
            row.append(Action("F", rank, k + warmup))
        row.append(Action("I", rank, k))
        if k >= rank:
            row.append(Action("W", rank, k - rank))
    return row + [Action("W", rank, k) for k in range(max(0, microbatches - rank), microbatches)]

"""GPipe and 1F1B: the two schedules everything else is measured against. One stage a rank."""

from __future__ import annotations

from minipar.pipeline_parallel.action import Action
from minipar.pipeline_parallel.schedule import Schedule, one_stage_each


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2018). A rank holds the activations of all microbatches at once.

    rank 0   F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3     bubble (p-1)(F+B)
    rank 1   .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3           activations m
    """
    rows = [
        [Action("F", rank, k) for k in range(microbatches)] + [Action("B", rank, k) for k in range(microbatches)]
        for rank in range(ranks)
    ]
    return Schedule(rows, microbatches, one_stage_each(ranks), "gpipe")


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """Fill the pipe, then one forward, one backward, in turn (PipeDream-flush; Narayanan et al. 2021, section 2.2.1).

    rank 0   F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3     bubble (p-1)(F+B), as GPipe
    rank 1   .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3           activations min(p-rank, m)
    """
    rows = [_row(rank, min(ranks - rank - 1, microbatches), microbatches) for rank in range(ranks)]
    return Schedule(rows, microbatches, one_stage_each(ranks), "1f1b")


def _row(rank: int, warmup: int, microbatches: int) -> list[Action]:
    row = [Action("F", rank, k) for k in range(warmup)]
    for k in range(microbatches):
        if k + warmup < microbatches:
            row.append(Action("F", rank, k + warmup))
        row.append(Action("B", rank, k))
    return row

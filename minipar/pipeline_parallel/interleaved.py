"""Interleaved 1F1B: every rank holds several thin chunks, so that the pipe fills in thinner slices.

    2 ranks, 2 chunks: rank 0 holds stages 0 and 2, rank 1 stages 1 and 3; a to d: forwards of stages 0 to 3; A to D: backwards

    rank 0   a0 a1 c0 c1 a2 .    C0C0 a3 C1C1 ...    bubble (p-1)(F+B)/v for F and B of a whole rank
    rank 1   .  b0 b1 d0 D0D0 d1 D1D1 b2 B0B0 ...    more is in flight than in 1F1B: up to (v-1) p + 2 (p-rank) - 1 chunks

(Narayanan et al. 2021, section 2.2.2, for m a multiple of p.) Here m may be anything: the microbatches go round in groups of p
or a few more. A group shorter than p would leave every rank waiting for its first chunk to come back from the last rank.
"""

from __future__ import annotations

from minipar.pipeline_parallel.action import Action
from minipar.pipeline_parallel.schedule import Schedule, loop


def interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B for any number of microbatches and chunks; with one chunk it is 1F1B."""
    groups = _groups(ranks, microbatches)
    rows = [_row(rank, ranks, chunks, groups) for rank in range(ranks)]
    return Schedule(rows, microbatches, loop(ranks, chunks), "interleaved")


def _groups(ranks: int, microbatches: int) -> list[range]:
    """The microbatches in as many groups as have p each, the rest spread over the first ones."""
    count = max(1, microbatches // ranks)
    size, rest = divmod(microbatches, count)
    ends = [size * (i + 1) + min(i + 1, rest) for i in range(count)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _row(rank: int, ranks: int, chunks: int, groups: list[range]) -> list[Action]:
    """Forwards and backwards each have one order for all ranks; a rank's place decides how far the forwards run ahead."""
    forwards = [Action("F", c * ranks + rank, k) for group in groups for c in range(chunks) for k in group]
    backwards = [Action("B", c * ranks + rank, k) for group in groups for c in reversed(range(chunks)) for k in group]
    hops = ranks - rank - 1  # to the last rank
    warmup = hops if chunks == 1 else 2 * hops + (chunks - 1) * len(groups[0])
    row = forwards[:warmup]
    for i, backward in enumerate(backwards):
        row += [*forwards[warmup + i : warmup + i + 1], backward]
    return row

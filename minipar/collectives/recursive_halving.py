"""Recursive halving, then doubling (Rabenseifner's all-reduce): the ring's bytes in a logarithm of its steps.

Swap halves with a far partner, then quarters with a nearer one, until each rank holds the sum of one piece; then the same swaps
in reverse gather the pieces. On 4 ranks, what rank 0 keeps of eight elements:

    01234567  ->  0123  ->  01  ->  0123  ->  01234567
             half      quarter  quarter    half             what it sends

Ranks beyond a power of two fold in first, as in recursive doubling (Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

import torch

from minipar import comm
from minipar.collectives.pieces import add, cut, flat
from minipar.collectives.recursive_doubling import fold_in, hand_back, power_of_two
from minipar.mesh import Axis, world


def all_reduce_(x: torch.Tensor, axis: Axis | None = None) -> torch.Tensor:
    """Sum ``x`` over the axis in place: ``2 log2 n`` steps, ``2 (n - 1) / n`` of the tensor, where n is a power of two."""
    axis = axis or world()
    row = flat(x)
    scratch = torch.empty_like(row)
    core = power_of_two(axis.size)
    if fold_in(row, scratch, core, axis):
        _halve_and_double(row, scratch, core, axis)
    hand_back(row, core, axis)
    return x


def _halve_and_double(row: torch.Tensor, scratch: torch.Tensor, distance: int, axis: Axis) -> None:
    """Reduce-scatter on the way into the recursion, all-gather on the way out."""
    distance //= 2
    if distance == 0:
        return
    partner = axis.rank ^ distance
    low, high = cut(row, 2)
    mine, theirs = (low, high) if axis.rank < partner else (high, low)
    arrived = scratch[: len(mine)]
    comm.exchange([(theirs, partner)], [(arrived, partner)], axis)
    add(mine, arrived)
    _halve_and_double(mine, scratch, distance, axis)
    comm.exchange([(mine, partner)], [(theirs, partner)], axis)

"""Recursive doubling: in each step swap everything with a partner twice as far away, and add.

    step 0    0 <-> 1    2 <-> 3        each holds the sum of 2 ranks
    step 1    0 <-> 2    1 <-> 3        each holds the sum of 4

Fewest steps of all, ``log2 n``, which is best for small tensors; but each step sends the whole tensor. Where n is no power of
two, the ranks beyond it hand their share to a partner first and get the result back last (Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

import torch

from minipar import comm
from minipar.collectives.pieces import add, flat
from minipar.mesh import Axis, world


def all_reduce_(x: torch.Tensor, axis: Axis | None = None) -> torch.Tensor:
    """Sum ``x`` over the axis in place. A rank sends ``log2 n`` times ``S`` bytes, where n is a power of two.

    Partners add the same two numbers, so that all ranks hold bitwise equal sums.
    """
    axis = axis or world()
    row = flat(x)
    scratch = torch.empty_like(row)
    core = power_of_two(axis.size)
    if fold_in(row, scratch, core, axis):
        distance = 1
        while distance < core:
            comm.exchange([(row, axis.rank ^ distance)], [(scratch, axis.rank ^ distance)], axis)
            add(row, scratch)
            distance *= 2
    hand_back(row, core, axis)
    return x


def power_of_two(n: int) -> int:
    """The largest power of two that is at most ``n``."""
    return 1 << (n.bit_length() - 1)


def fold_in(row: torch.Tensor, scratch: torch.Tensor, core: int, axis: Axis) -> bool:
    """Ranks from ``core`` on give their share to ``rank - core``. True where this rank takes part in what follows."""
    if axis.rank >= core:
        comm.send(row, axis.rank - core, axis)
    elif axis.rank + core < axis.size:
        comm.exchange([], [(scratch, axis.rank + core)], axis)
        add(row, scratch)
    return axis.rank < core


def hand_back(row: torch.Tensor, core: int, axis: Axis) -> None:
    """The ranks from ``core`` on get the result from the partner that they gave their share to."""
    if axis.rank >= core:
        comm.exchange([], [(row, axis.rank - core)], axis)
    elif axis.rank + core < axis.size:
        comm.send(row, axis.rank + core, axis)

"""The obvious all-reduce: everyone sends everything to rank 0, which adds it up and sends the sum back.

    1, 2, 3 -> 0, then 0 -> 1, 2, 3

Rank 0's link carries ``(n - 1) S`` bytes each way while all others wait: the time grows with the number of ranks.
"""

from __future__ import annotations

import torch

from minipar import comm
from minipar.collectives.pieces import add, flat
from minipar.mesh import Axis, world


def all_reduce_(x: torch.Tensor, axis: Axis | None = None) -> torch.Tensor:
    """Sum ``x`` over the axis in place. Rank 0 sends ``(n - 1) S`` bytes and gets as many, others ``S``."""
    axis = axis or world()
    row = flat(x)
    if axis.rank == 0:
        others = range(1, axis.size)
        for arrived in comm.exchange([], [(torch.empty_like(row), other) for other in others], axis):
            add(row, arrived)
        comm.exchange([(row, other) for other in others], [], axis)
    else:
        comm.send(row, 0, axis)
        comm.exchange([], [(row, 0)], axis)
    return x

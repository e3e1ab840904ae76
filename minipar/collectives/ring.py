"""The ring: everyone sends to the right and receives from the left, one piece at a time, and no link ever rests.

The tensor is cut into n pieces. In ``n - 1`` steps a piece's sum travels once around and collects every rank's share
(reduce-scatter); in ``n - 1`` more steps the finished sums travel around (all-gather). With 4 ranks, what rank 0 sends:

    step     0    1    2  |  3    4    5
    piece    3    2    1  |  0    3    2        partial sums | finished sums

Each rank sends ``2 (n - 1) / n`` of the tensor, fewer than 2 S bytes however many ranks there are, and no algorithm sends less
(Patarasuk and Yuan 2009). The price is ``2 (n - 1)`` latencies one after the other.
"""

from __future__ import annotations

import torch

from minipar import comm
from minipar.collectives.pieces import add, cut, flat
from minipar.mesh import Axis, world


def all_reduce_(x: torch.Tensor, axis: Axis | None = None) -> torch.Tensor:
    """Sum ``x`` over the axis in place. Each rank sends all pieces but its own, and all but its right neighbour's."""
    axis = axis or world()
    pieces = cut(flat(x), axis.size)
    _reduce_scatter(pieces, axis)
    _all_gather(pieces, axis)
    return x


def reduce_scatter(x: torch.Tensor, axis: Axis | None = None) -> torch.Tensor:
    """This rank's rows (dim 0) of the sum of ``x``; rows that do not divide go to the first ranks. Sends ``(n-1)/n`` of ``x``."""
    axis = axis or world()
    pieces = cut(x.detach().clone(memory_format=torch.contiguous_format), axis.size)
    _reduce_scatter(pieces, axis)
    return pieces[axis.rank].clone()


def all_gather(x: torch.Tensor, axis: Axis | None = None) -> torch.Tensor:
    """The equal pieces ``x`` of all ranks joined along dim 0, in order of rank. Sends ``n - 1`` pieces."""
    axis = axis or world()
    pieces = [torch.empty_like(x, requires_grad=False, memory_format=torch.contiguous_format) for _ in range(axis.size)]
    pieces[axis.rank].copy_(x.detach())
    _all_gather(pieces, axis)
    return torch.cat(pieces)


def _reduce_scatter(pieces: list[torch.Tensor], axis: Axis) -> None:
    """Leave in ``pieces[axis.rank]`` the sum over all ranks, in the others those of a few."""
    n, rank = axis.size, axis.rank
    scratch = torch.empty_like(pieces[0])  # the first piece is the longest
    for step in range(n - 1):
        outgoing, target = pieces[(rank - 1 - step) % n], pieces[(rank - 2 - step) % n]
        arrived = scratch[: len(target)]
        comm.exchange([(outgoing, (rank + 1) % n)], [(arrived, (rank - 1) % n)], axis)
        add(target, arrived)


def _all_gather(pieces: list[torch.Tensor], axis: Axis) -> None:
    """Fill every piece with that of the rank it belongs to: ``pieces[r]`` of rank ``r``."""
    n, rank = axis.size, axis.rank
    for step in range(n - 1):
        outgoing, incoming = pieces[(rank - step) % n], pieces[(rank - 1 - step) % n]
        comm.exchange([(outgoing, (rank + 1) % n)], [(incoming, (rank - 1) % n)], axis)

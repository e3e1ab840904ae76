"""Trees: ``log2 n`` steps instead of ``n``, but the whole tensor in each.

A binomial tree on 8 ranks; the sum climbs from the leaves to rank 0, and the result comes down the same branches:

    0 <- 1    2 <- 3    4 <- 5    6 <- 7        distance 1
    0 <------ 2         4 <------ 6             distance 2
    0 <---------------- 4                       distance 4
"""

from __future__ import annotations

import torch

from minipar import comm
from minipar.collectives.pieces import add, flat
from minipar.mesh import Axis, world


def all_reduce_(x: torch.Tensor, axis: Axis | None = None) -> torch.Tensor:
    """Sum ``x`` over the axis in place: up the tree to rank 0, then down. ``2 ceil(log2 n)`` steps of ``S`` bytes."""
    axis = axis or world()
    row = flat(x)
    scratch = torch.empty_like(row)
    distance = 1
    while distance < axis.size:
        if axis.rank % (2 * distance) == distance:
            comm.send(row, axis.rank - distance, axis)
        elif axis.rank % (2 * distance) == 0 and axis.rank + distance < axis.size:
            comm.exchange([], [(scratch, axis.rank + distance)], axis)
            add(row, scratch)
        distance *= 2
    broadcast_(x, axis)
    return x


def broadcast_(x: torch.Tensor, axis: Axis | None = None, src: int = 0) -> torch.Tensor:
    """Overwrite ``x`` with that of rank ``src``: whoever has it passes it on, so the number of owners doubles in each step."""
    axis = axis or world()
    row = flat(x)
    place = (axis.rank - src) % axis.size  # the tree is rooted at src
    distance = 1
    while distance < axis.size:
        distance *= 2
    while distance > 1:
        distance //= 2
        if place % (2 * distance) == distance:
            comm.exchange([], [(row, (axis.rank - distance) % axis.size)], axis)
        elif place % (2 * distance) == 0 and place + distance < axis.size:
            comm.send(row, (axis.rank + distance) % axis.size, axis)
    return x


def broadcast(x: torch.Tensor, axis: Axis | None = None, src: int = 0) -> torch.Tensor:
    """A new tensor: ``x`` as rank ``src`` holds it. Elsewhere ``x`` gives the shape."""
    return broadcast_(x.detach().clone(memory_format=torch.contiguous_format), axis, src)

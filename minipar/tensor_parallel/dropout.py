"""Dropout when ranks share the work: who must draw the same numbers, and who must not.

Replicated activations need the same mask on every rank of the axis: ordinary dropout does that while all ranks' default random
state is the same. Tokens that are split between ranks need masks of their own, or every piece would lose the same places.

Each mask of a split tensor comes from a generator of its own, whose seed is one draw from the default random state plus the rank.
So every rank uses up the same amount of the default state, and recomputation, which restores that state, replays every mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minipar.mesh import Axis, Mesh


class ShardedDropout(nn.Module):
    """Dropout with probability ``p`` on a tensor that is split over ``axis``. Keeps one byte per element for backward."""

    def __init__(self, p: float, axis: Axis) -> None:
        super().__init__()
        self.p, self.axis = p, axis

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        generator = torch.Generator(x.device).manual_seed(draw_seed() + self.axis.rank)
        dropped = torch.rand(x.shape, generator=generator, device=x.device) < self.p
        return x.masked_fill(dropped, 0.0) / (1 - self.p)


def draw_seed() -> int:
    """A seed from the default random state, the same on all ranks whose state is the same."""
    return int(torch.randint(2**62, ()))


def seed_ranks(seed: int, mesh: Mesh) -> None:
    """Set the default random state: the same on ranks that share a layer's work, its own for every part of batch and sequence."""
    place = mesh["pp"].rank * mesh.sizes["dp"] * mesh.sizes["cp"] + mesh["dp"].rank * mesh.sizes["cp"] + mesh["cp"].rank
    torch.manual_seed(seed * 1_000_003 + place)

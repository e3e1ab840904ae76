"""Collectives by hand: what ``all_reduce`` does inside, written from messages between two ranks.

One algorithm a file. They differ in how many messages a rank sends one after the other (each pays the link's latency) and in how
many bytes (each pays for bandwidth); ``costs`` holds the closed forms and predicts a timeline from them.
"""

from collections.abc import Callable

import torch

from minipar.collectives import costs, naive, recursive_doubling, recursive_halving, ring, segmented_ring, tree
from minipar.collectives.pairwise import all_to_all
from minipar.collectives.ring import all_gather, reduce_scatter
from minipar.collectives.tree import broadcast
from minipar.mesh import Axis

ALL_REDUCE: dict[str, Callable[[torch.Tensor, Axis | None], torch.Tensor]] = {
    "naive": naive.all_reduce_,
    "tree": tree.all_reduce_,
    "recursive doubling": recursive_doubling.all_reduce_,
    "recursive halving": recursive_halving.all_reduce_,
    "ring": ring.all_reduce_,
    "segmented ring": segmented_ring.all_reduce_,
}

__all__ = ["ALL_REDUCE", "all_gather", "all_reduce", "all_reduce_", "all_to_all", "broadcast", "costs", "reduce_scatter"]


def all_reduce_(x: torch.Tensor, axis: Axis | None = None, algorithm: str = "segmented ring") -> torch.Tensor:
    """Sum ``x`` over all ranks of the axis, in place, by one of the algorithms of ``ALL_REDUCE``. Any shape, size and dtype."""
    if algorithm not in ALL_REDUCE:
        raise ValueError(f"no all-reduce called {algorithm!r}; choose one of {', '.join(ALL_REDUCE)}")
    return ALL_REDUCE[algorithm](x, axis)


def all_reduce(x: torch.Tensor, axis: Axis | None = None, algorithm: str = "segmented ring") -> torch.Tensor:
    """A new tensor: the sum of ``x`` over all ranks of the axis."""
    return all_reduce_(x.detach().clone(memory_format=torch.contiguous_format), axis, algorithm)

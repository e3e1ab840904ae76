"""Cutting a parameter: how many rows or columns each rank gets, and the note that says so."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from minipar.mesh import Axis
from minipar.parameters import shard, spec, sum_over


def shares(total: int, axis: Axis, what: str, unit: int = 1) -> list[int]:
    """``total`` units of ``unit`` rows each, dealt out to the ranks: where they do not divide, the first ranks get one more.

    ``what`` names the units (such as "heads") for the refusal of more ranks than units.
    """
    if total < axis.size:
        raise ValueError(f"{total} {what} cannot be split over the {axis.size} ranks of axis {axis.name}: some would get none")
    return [(total // axis.size + (rank < total % axis.size)) * unit for rank in range(axis.size)]


def own(x: Tensor, axis: Axis, dim: int, sizes: Sequence[int]) -> Tensor:
    """This rank's part of ``x`` along ``dim``."""
    return x.narrow(dim, sum(sizes[: axis.rank]), sizes[axis.rank])


def cut(param: Tensor, axis: Axis, dim: int, sizes: Sequence[int]) -> nn.Parameter:
    """A new parameter: this rank's part of ``param`` along ``dim``, noted as such."""
    local = nn.Parameter(own(param.detach(), axis, dim, sizes).clone())
    shard(local, axis.name, dim, sizes)
    return local


def also_sum_over(param: Tensor, axis: Axis) -> None:
    """Note that each rank of ``axis``, too, sees only its part of the gradient of ``param``."""
    sum_over(param, (*(name for name in spec(param).sum_over if name != axis.name), axis.name))

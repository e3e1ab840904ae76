"""What each parameter says about itself: how it is split, and over which axes its gradient must be summed.

Techniques note this on the parameters they make; syncing, clipping, comparing and saving read it, and need to know no technique.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor, nn

from minipar import comm
from minipar.mesh import Axis, Mesh


@dataclass
class Spec:
    """How one rank's parameter relates to the full one."""

    shards: dict[str, tuple[int, Sequence[int] | None]] = field(default_factory=dict)  # axis -> (dim, sizes by rank or None: equal)
    sum_over: tuple[str, ...] = ("dp", "cp")  # axes on which each rank's gradient is only its part of the sum
    order: dict[str, Sequence[int]] = field(default_factory=dict)  # axis -> see ``reorder``
    copies: int = 1  # pipeline stages that hold this parameter (2 for an embedding tied to the head)


def spec(param: Tensor) -> Spec:
    """The notes on ``param``; without any it is whole on every rank, and its gradient is a sum over the batch and the sequence."""
    if not hasattr(param, "_minipar_spec"):
        param._minipar_spec = Spec()  # type: ignore[attr-defined]
    return param._minipar_spec  # type: ignore[attr-defined]


def shard(param: Tensor, axis: str, dim: int, sizes: Sequence[int] | None = None) -> None:
    """Note that ``param`` is this rank's piece along ``dim`` of a tensor split over ``axis``; ``sizes`` by rank, None: equal."""
    spec(param).shards[axis] = (dim, sizes)


def reorder(param: Tensor, axis: str, order: Sequence[int]) -> None:
    """Note that the pieces over ``axis``, laid end to end, are these places of the full tensor, some of them more than once."""
    spec(param).order[axis] = order


def sum_over(param: Tensor, axes: tuple[str, ...]) -> None:
    """Note over which axes the gradient of ``param`` must be summed."""
    spec(param).sum_over = axes


def full_tensor(x: Tensor, param: Tensor, mesh: Mesh) -> Tensor:
    """``x`` (the parameter, its gradient or its optimizer state) put together from all ranks that hold a piece of ``param``."""
    x = x.detach()
    for name, (dim, sizes) in reversed(spec(param).shards.items()):
        x = _gather(x, mesh[name], dim, sizes)
        order = spec(param).order.get(name)
        if order is not None:
            x = x.index_select(dim, torch.tensor([order.index(i) for i in range(max(order) + 1)], device=x.device))
    return x


def _gather(x: Tensor, axis: Axis, dim: int, sizes: Sequence[int] | None) -> Tensor:
    if sizes is None or len(set(sizes)) == 1:
        return comm.all_gather(x, axis, dim)
    pad = x.new_zeros([max(sizes) - n if d == dim else n for d, n in enumerate(x.shape)])
    pieces = comm.all_gather(torch.cat([x, pad], dim), axis, dim).split(max(sizes), dim)
    return torch.cat([piece.narrow(dim, 0, size) for piece, size in zip(pieces, sizes, strict=True)], dim)


def place(param: Tensor, mesh: Mesh) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where this rank's piece of ``param`` lies in the full tensor: the offset of its first element, and the full shape.

    Raises ValueError where it is no one piece: its rows lie in another order.
    """
    if spec(param).order:
        raise ValueError("experts that were moved are no one piece of the whole: move them home first, by relocate to in_order")
    offset, shape = [0] * param.dim(), list(param.shape)
    for name, (dim, sizes) in reversed(spec(param).shards.items()):
        axis = mesh[name]
        sizes = [shape[dim]] * axis.size if sizes is None else sizes
        offset[dim] += sum(sizes[: axis.rank])
        shape[dim] = sum(sizes)
    return tuple(offset), tuple(shape)


def replicas(param: Tensor, mesh: Mesh) -> int:
    """On how many ranks the same piece of this parameter lies."""
    count = mesh.sizes["dp"] * mesh.sizes["cp"] * mesh.sizes["tp"]
    for name in spec(param).shards:
        count //= mesh.sizes[name]
    return count * spec(param).copies


def grad_norm(params: Iterable[nn.Parameter], mesh: Mesh, order: float = 2.0) -> Tensor:
    """The norm of the whole model's gradient, a float64 scalar that is the same on every rank.

    Replicated parameters count once: each copy adds its share. ``order`` is 2 or infinity.
    """
    if order not in (2.0, float("inf")):
        raise ValueError(f"grad_norm knows order 2 and infinity, not {order}")
    held = [p for p in params if p.grad is not None]
    if order == float("inf"):
        parts = [p.grad.detach().abs().max() for p in held if p.grad is not None and p.numel()]
    else:
        parts = [_square(p.grad, p, mesh) for p in held if p.grad is not None]
    device = held[0].device if held else "cpu"
    total = torch.stack([part.double() for part in parts]) if parts else torch.zeros(1, dtype=torch.float64, device=device)
    if order == float("inf"):
        return comm.all_reduce(total.max(), mesh.world, "max")
    return comm.all_reduce(total.sum(), mesh.world).sqrt()


def _square(grad: Tensor, param: Tensor, mesh: Mesh) -> Tensor:
    """This rank's share of the squared norm: every element of the full gradient counts once, however many ranks hold it."""
    squares = grad.detach().double().pow(2)
    for name, order in spec(param).order.items():
        dim, sizes = spec(param).shards[name]
        first = sum(sizes[: mesh[name].rank]) if sizes else mesh[name].rank * grad.shape[dim]
        held = [order.count(i) for i in order[first : first + grad.shape[dim]]]
        squares = squares.movedim(dim, -1) / torch.tensor(held, device=grad.device)
    return squares.sum() / replicas(param, mesh)


def sync_gradients(params: Iterable[nn.Parameter], mesh: Mesh) -> None:
    """Sum each gradient over the axes its parameter names: one all-reduce for all parameters that name the same.

    Every rank of those axes must pass the same parameters in the same order; a missing gradient counts as zero.
    """
    ordered = sorted(params, key=lambda p: spec(p).sum_over)  # a stable sort keeps the order within each group
    for axes, group in groupby(ordered, key=lambda p: spec(p).sum_over):
        axis = mesh[axes]
        if axis.size > 1:
            for same in _by_dtype(list(group)):
                _sum_together(same, axis)


def _by_dtype(params: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    dtypes = sorted({p.dtype for p in params}, key=str)
    return [[p for p in params if p.dtype == dtype] for dtype in dtypes]


def _sum_together(params: list[nn.Parameter], axis: Axis) -> None:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    flat = comm.all_reduce_(torch.cat([g.flatten() for g in grads]), axis)
    for p, piece in zip(params, flat.split([p.numel() for p in params]), strict=True):
        p.grad = piece.view_as(p)

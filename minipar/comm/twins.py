"""Communication under autograd: each operation beside the one that its gradient takes.

For every axis of the mesh a tensor is *replicated* (the same on all ranks), *sharded* (each rank holds a piece) or *partial* (the
true value is the sum over the ranks). The loss is one number, the same on every rank, and a tensor's gradient is that of this loss:

    operation           forward           backward          from          to
    copy                nothing           all-reduce        replicated -> replicated, feeding sharded work
    reduce              all-reduce        nothing           partial    -> replicated
    gather              all-gather        own slice         sharded    -> replicated
    split               own slice         all-gather        replicated -> sharded
    gather_for_sharded  all-gather        reduce-scatter    sharded    -> replicated, feeding sharded work
    reduce_scatter      reduce-scatter    all-gather        partial    -> sharded
    all_to_all          all-to-all        all-to-all back   sharded    -> sharded otherwise
    broadcast           broadcast         reduce to source  on one     -> replicated, feeding sharded work

The gradient of a value that feeds sharded work is partial: every rank saw only its own part of what happens next. Leaving out
``copy`` there is the classic mistake: the forward pass is right and the gradient of everything below is not.
(``copy`` and ``reduce`` are f and g of Megatron-LM, Shoeybi et al. 2019.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from minipar.comm import calls
from minipar.comm.kinds import ENTERED, KINDS, PARTIAL, REPLICATED, SHARDED, twin
from minipar.mesh import Axis

Context = Any


@twin((REPLICATED,), ENTERED)
def copy(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """``x`` as it is; its gradient is summed over the axis."""
    return _Copy.apply(x, axis)


@twin((PARTIAL, SHARDED), REPLICATED)
def reduce(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum of ``x`` over the axis; the gradient passes as it is."""
    return _Reduce.apply(x, axis)


@twin((SHARDED,), REPLICATED)
def gather(x: torch.Tensor, axis: Axis, dim: int = 0) -> torch.Tensor:
    """The pieces of all ranks joined along ``dim``, for work that every rank repeats."""
    return _Gather.apply(x, axis, dim)


@twin((REPLICATED,), SHARDED)
def split(x: torch.Tensor, axis: Axis, dim: int = 0) -> torch.Tensor:
    """This rank's equal piece of a replicated ``x`` along ``dim``."""
    if x.shape[dim] % axis.size:
        raise ValueError(f"{x.shape[dim]} along dim {dim} does not split over the {axis.size} ranks of axis {axis.name}")
    return _Split.apply(x, axis, dim)


@twin((SHARDED,), ENTERED)
def gather_for_sharded(x: torch.Tensor, axis: Axis, dim: int = 0) -> torch.Tensor:
    """The pieces of all ranks joined along ``dim``, for work in which each rank does its part."""
    return _GatherForSharded.apply(x, axis, dim)


@twin((PARTIAL, SHARDED), SHARDED)
def reduce_scatter(x: torch.Tensor, axis: Axis, dim: int = 0) -> torch.Tensor:
    """This rank's piece along ``dim`` of the sum of ``x`` over the axis."""
    return _ReduceScatter.apply(x, axis, dim)


@twin((SHARDED, ENTERED), SHARDED)
def all_to_all(
    x: torch.Tensor, axis: Axis, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None
) -> torch.Tensor:
    """Rows to and from every rank (see ``comm.all_to_all``); the gradient takes the same way back."""
    return _AllToAll.apply(x, axis, send_counts, recv_counts)


@twin(KINDS, ENTERED)
def broadcast(x: torch.Tensor, axis: Axis, src: int = 0) -> torch.Tensor:
    """``x`` of rank ``src`` on every rank; the gradients of all are summed there, and are zero elsewhere."""
    return _Broadcast.apply(x, axis, src)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return calls.all_reduce(grad, ctx.axis), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        return calls.all_reduce(x, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None  # another all-reduce here would count every rank's copy of the one loss


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
        ctx.axis, ctx.dim = axis, dim
        return calls.all_gather(x, axis, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _own(grad, ctx.axis, ctx.dim), None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
        ctx.axis, ctx.dim = axis, dim
        return _own(x, axis, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return calls.all_gather(grad, ctx.axis, ctx.dim), None, None


class _GatherForSharded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
        ctx.axis, ctx.dim = axis, dim
        return calls.all_gather(x, axis, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return calls.reduce_scatter(grad, ctx.axis, ctx.dim), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
        ctx.axis, ctx.dim = axis, dim
        return calls.reduce_scatter(x, axis, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return calls.all_gather(grad, ctx.axis, ctx.dim), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, x: torch.Tensor, axis: Axis, send_counts: Sequence[int] | None, recv_counts: Sequence[int] | None
    ) -> torch.Tensor:
        ctx.axis, ctx.send_counts, ctx.recv_counts = axis, send_counts, recv_counts
        return calls.all_to_all(x, axis, send_counts, recv_counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        back = (ctx.send_counts, ctx.recv_counts) if ctx.recv_counts is None else (ctx.recv_counts, ctx.send_counts)
        return calls.all_to_all(grad, ctx.axis, *back), None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, axis: Axis, src: int) -> torch.Tensor:
        ctx.axis, ctx.src = axis, src
        return calls.broadcast(x, axis, src)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        total = calls.all_reduce(grad, ctx.axis)
        return (total if ctx.axis.rank == ctx.src else torch.zeros_like(total)), None, None


def _own(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    """This rank's piece, in memory of its own."""
    return x.chunk(axis.size, dim)[axis.rank].clone(memory_format=torch.contiguous_format)

"""Plain data among all ranks of an axis, without autograd.

Every call takes the ``Axis`` it runs over (all ranks, if left out) and returns new tensors; a trailing underscore says that it
works in place. On an axis of one rank nothing is sent. The ``async_`` forms return a ``Pending``: ``wait()`` gives the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from minipar.comm.pending import Pending, finished, launch, to_wire
from minipar.mesh import Axis, world

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# torch renamed these two in 2.13
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def async_all_reduce_(x: torch.Tensor, axis: Axis | None = None, op: str = "sum") -> Pending:
    """Start to combine ``x`` of all ranks, in place: every rank gets the same result, of the same shape."""
    axis = _over(x, axis)
    reduction = _reduction(op)
    _refuse_in_place(x)
    if axis.size == 1:
        return finished(x)
    wire = to_wire(x, axis)

    def finish() -> torch.Tensor:
        return x if wire is x else x.copy_(wire)

    return launch("all_reduce", axis, x, _nbytes(x), lambda: dist.all_reduce(wire, reduction, axis.group, async_op=True), finish)


def all_reduce_(x: torch.Tensor, axis: Axis | None = None, op: str = "sum") -> torch.Tensor:
    """Combine ``x`` of all ranks in place, by "sum", "max" or "min"."""
    return async_all_reduce_(x, axis, op).wait()


def all_reduce(x: torch.Tensor, axis: Axis | None = None, op: str = "sum") -> torch.Tensor:
    """A new tensor: ``x`` of all ranks combined by "sum", "max" or "min"; the same on every rank."""
    return all_reduce_(_own_copy(x), axis, op)


def async_all_gather(x: torch.Tensor, axis: Axis | None = None, dim: int = 0) -> Pending:
    """Start to put the equal pieces of all ranks together along ``dim``, in order of rank."""
    axis = _over(x, axis)
    if axis.size == 1:
        return finished(x.detach())
    wire = to_wire(x.detach(), axis)
    out = wire.new_empty((axis.size, *wire.shape))  # [n, *x.shape]

    def finish() -> torch.Tensor:
        return _from_wire(_join(out, dim), x)

    start = lambda: _all_gather_single(out.view(-1), wire.view(-1), axis.group, async_op=True)  # noqa: E731
    return launch("all_gather", axis, x, _nbytes(out), start, finish)


def all_gather(x: torch.Tensor, axis: Axis | None = None, dim: int = 0) -> torch.Tensor:
    """The equal pieces ``x`` of all ranks, put together along ``dim`` in order of rank."""
    return async_all_gather(x, axis, dim).wait()


def async_reduce_scatter(x: torch.Tensor, axis: Axis | None = None, dim: int = 0) -> Pending:
    """Start to sum ``x`` over all ranks and keep this rank's piece along ``dim``."""
    axis = _over(x, axis)
    if axis.size == 1:
        return finished(x.detach())
    if x.shape[dim] % axis.size:
        raise ValueError(
            f"reduce_scatter over {axis.size} ranks needs a multiple of {axis.size} along dim {dim}, not {x.shape[dim]}"
        )
    pieces = torch.stack(x.detach().chunk(axis.size, dim)) if dim % x.dim() else x.detach()  # [n, *piece] or the same memory
    wire = to_wire(pieces, axis)
    shape = list(x.shape)
    shape[dim] //= axis.size
    out = wire.new_empty(shape)

    def finish() -> torch.Tensor:
        return _from_wire(out, x)

    start = lambda: _reduce_scatter_single(out.view(-1), wire.view(-1), group=axis.group, async_op=True)  # noqa: E731
    return launch("reduce_scatter", axis, x, _nbytes(x), start, finish)


def reduce_scatter(x: torch.Tensor, axis: Axis | None = None, dim: int = 0) -> torch.Tensor:
    """This rank's piece, along ``dim``, of the sum of ``x`` over all ranks."""
    return async_reduce_scatter(x, axis, dim).wait()


def async_all_to_all(
    x: torch.Tensor, axis: Axis | None = None, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None
) -> Pending:
    """Start to send ``send_counts[r]`` rows of ``x`` to each rank ``r``, in order, and to receive ``recv_counts[r]`` from each."""
    axis = _over(x, axis)
    send_counts = _even_counts(x, axis) if send_counts is None else list(send_counts)
    recv_counts = send_counts if recv_counts is None else list(recv_counts)
    if len(send_counts) != axis.size or len(recv_counts) != axis.size or sum(send_counts) != x.shape[0]:
        raise ValueError(
            f"all_to_all over {axis.size} ranks: {axis.size} counts each way that add up to the {x.shape[0]} rows; "
            f"got to send {send_counts}, to receive {recv_counts}"
        )
    if axis.size == 1:
        return finished(x.detach())
    wire = to_wire(x.detach(), axis)
    out = wire.new_empty((sum(recv_counts), *x.shape[1:]))
    row_bytes = x.element_size() * x.shape[1:].numel()
    leaving, coming = (row_bytes * (sum(counts) - counts[axis.rank]) for counts in (send_counts, recv_counts))

    def finish() -> torch.Tensor:
        return _from_wire(out, x)

    start = lambda: dist.all_to_all_single(out, wire, recv_counts, send_counts, axis.group, async_op=True)  # noqa: E731
    busier = max(leaving, coming)  # paced, a rank is done when both ways are
    return launch("all_to_all", axis, x[:0], busier, start, finish, nbytes=leaving)


def all_to_all(
    x: torch.Tensor, axis: Axis | None = None, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None
) -> torch.Tensor:
    """Rows of ``x`` to every rank and rows from every rank, joined in order of rank.

    Without counts, equal shares; without ``recv_counts`` alone, as many rows come from each rank as go there.
    """
    return async_all_to_all(x, axis, send_counts, recv_counts).wait()


def broadcast_(x: torch.Tensor, axis: Axis | None = None, src: int = 0) -> torch.Tensor:
    """Overwrite ``x`` with that of rank ``src`` (its place on the axis)."""
    axis = _over(x, axis)
    _refuse_in_place(x)
    if axis.size == 1:
        return x
    wire = to_wire(x, axis)

    def finish() -> torch.Tensor:
        return x if wire is x else x.copy_(wire)

    start = lambda: dist.broadcast(wire, axis.ranks[src], axis.group, async_op=True)  # noqa: E731
    return launch("broadcast", axis, x, _nbytes(x), start, finish).wait()


def broadcast(x: torch.Tensor, axis: Axis | None = None, src: int = 0) -> torch.Tensor:
    """A new tensor: ``x`` as rank ``src`` holds it. Elsewhere ``x`` gives the shape."""
    return broadcast_(_own_copy(x), axis, src)


def barrier(axis: Axis | None = None) -> None:
    """Return once every rank of the axis has come here."""
    axis = axis or world()
    if axis.size > 1:
        token = to_wire(torch.zeros(1, device=_device(axis)), axis)
        start = lambda: dist.all_reduce(token, group=axis.group, async_op=True)  # noqa: E731
        launch("barrier", axis, token, 0, start, lambda: None).wait()


def gather_objects(value: Any, axis: Axis | None = None) -> list[Any]:
    """Any picklable value of every rank, in order of rank. For reports; not counted as traffic."""
    axis = axis or world()
    if axis.size == 1:
        return [value]
    values: list[Any] = [None] * axis.size
    dist.all_gather_object(values, value, axis.group)
    return values


def _reduction(op: str) -> dist.ReduceOp.RedOpType:
    if op not in _OPS:
        raise ValueError(f"all_reduce combines by {', '.join(_OPS)}, not {op!r}; for a mean, sum and divide by the count")
    return _OPS[op]


def _over(x: torch.Tensor, axis: Axis | None) -> Axis:
    """The axis of a call on ``x``: all ranks, if left out."""
    _refuse_other(x)
    if axis is not None and not isinstance(axis, Axis):
        raise TypeError(f'an axis is one of a mesh, as in mesh["dp"], or left out for all ranks; it is not {axis!r}')
    return axis or world()


def _own_copy(x: torch.Tensor) -> torch.Tensor:
    _refuse_other(x)
    return x.detach().clone(memory_format=torch.contiguous_format)


def _refuse_other(x: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"ranks send each other tensors, not {type(x).__name__}: make it one, as in torch.tensor(3.0)")


def _refuse_in_place(x: torch.Tensor) -> None:
    if x.requires_grad:
        raise ValueError(
            "this call overwrites its tensor, and autograd still needs that one: use minipar.comm.twins, or detach it first"
        )
    if not x.is_contiguous():
        raise ValueError(
            "this call overwrites its tensor, so it must be contiguous in memory: pass x.contiguous() and keep the result"
        )


def _from_wire(wire: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return wire.to(like.device)


def _device(axis: Axis) -> str:
    return "cuda" if dist.get_backend(axis.group) == "nccl" else "cpu"


def _join(pieces: torch.Tensor, dim: int) -> torch.Tensor:
    """``[n, *piece]`` to one tensor, joined along ``dim`` of the piece; without a copy where dim is 0."""
    dim %= pieces.dim() - 1
    return pieces.flatten(0, 1) if dim == 0 else torch.cat(pieces.unbind(0), dim)


def _even_counts(x: torch.Tensor, axis: Axis) -> list[int]:
    if x.shape[0] % axis.size:
        raise ValueError(f"{x.shape[0]} rows do not divide over {axis.size} ranks: pass send_counts and recv_counts")
    return [x.shape[0] // axis.size] * axis.size


def _nbytes(x: torch.Tensor) -> int:
    return x.nbytes

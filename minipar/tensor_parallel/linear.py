"""One matrix product becomes several: by columns (each rank makes some outputs) or by rows (each makes a part of every output).

                     weight [out, in] on a rank     input               output
    column-parallel  [out / tp, in]                 replicated          sharded along the last dimension
    row-parallel     [out, in / tp]                 sharded (last dim)  partial, then summed

A column-parallel product followed by a row-parallel one needs a single all-reduce forward and a single one backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minipar import comm
from minipar.comm import kinds, twins
from minipar.tensor_parallel.region import SEQ, Region
from minipar.tensor_parallel.shares import also_sum_over, cut, shares

Weights = tuple[Tensor, Tensor | None]  # weight [out, in] and bias [out]


class ColumnParallelLinear(nn.Module):
    """``[batch, seq, in]`` to ``[batch, seq, out / tp]``; with ``gather_output`` to ``[batch, seq, out]`` on every rank.

    ``whole`` is the layer to cut. Rows of its weight stay together in units of ``unit`` (an attention head's width).
    """

    def __init__(self, whole: nn.Linear, region: Region, unit: int = 1, gather_output: bool = False) -> None:
        super().__init__()
        sizes = shares(whole.out_features // unit, region.axis, "outputs" if unit == 1 else "heads", unit)
        if gather_output and len(set(sizes)) > 1:
            raise ValueError(f"only equal pieces can be gathered: {whole.out_features} outputs over {region.axis.size} ranks")
        self.region, self.gather_output = region, gather_output
        self.weight = cut(whole.weight, region.axis, 0, sizes)
        self.bias = None if whole.bias is None else cut(whole.bias, region.axis, 0, sizes)

    def forward(self, x: Tensor) -> Tensor:
        (y,) = column_products(x, [(self.weight, self.bias)], self.region)
        return twins.gather(y, self.region.axis, -1) if self.gather_output else y


class RowParallelLinear(nn.Module):
    """``[batch, seq, in / tp]`` to ``[batch, seq, out]``; with ``split_input`` from ``[batch, seq, in]`` on every rank.

    The bias is whole on every rank and joins after the sum: before it, it would count tp times.
    """

    def __init__(self, whole: nn.Linear, region: Region, unit: int = 1, split_input: bool = False) -> None:
        super().__init__()
        self.region, self.split_input = region, split_input
        sizes = shares(whole.in_features // unit, region.axis, "inputs" if unit == 1 else "heads", unit)
        self.weight = cut(whole.weight, region.axis, 1, sizes)
        self.bias = whole.bias
        if self.bias is not None and region.sequence_parallel:
            also_sum_over(self.bias, region.axis)  # each rank adds it to its own tokens only

    def forward(self, x: Tensor) -> Tensor:
        if self.split_input:
            x = twins.split(x, self.region.axis, -1)
        y = self.region.leave(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


def column_products(x: Tensor, layers: list[Weights], region: Region) -> list[Tensor]:
    """Column-parallel products of one input, such as queries, keys and values: one all-reduce backward for all of them."""
    if region.overlap and not kinds.active():  # the checking mode sees single steps only
        return list(_OverlappedColumns.apply(x, region, *(tensor for layer in layers for tensor in layer)))
    x = region.enter(x)  # [batch, seq, in]
    return [F.linear(x, weight, bias) for weight, bias in layers]


class _OverlappedColumns(torch.autograd.Function):
    """The same, with a backward pass that sends the input's gradient while it computes the weights'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region, *weights: Any) -> tuple[Tensor, ...]:
        whole = comm.all_gather(x, region.axis, SEQ) if region.sequence_parallel else x  # [batch, seq, in]
        ctx.region = region
        ctx.save_for_backward(x if region.regather else whole, *weights)
        return tuple(F.linear(whole, weight, bias) for weight, bias in zip(weights[::2], weights[1::2], strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        region: Region = ctx.region
        kept, *weights = ctx.saved_tensors
        again = comm.async_all_gather(kept, region.axis, SEQ) if region.regather else None
        rows = [grad.flatten(0, -2) for grad in grads]  # [batch * seq, out / tp] each
        grad_x = sum_of_products(rows, weights[::2]).view(*grads[0].shape[:-1], -1)  # [batch, seq, in], partial
        if region.sequence_parallel:
            sending = comm.async_reduce_scatter(grad_x, region.axis, SEQ)
        else:
            sending = comm.async_all_reduce_(grad_x, region.axis)
        whole = (again.wait() if again else kept).flatten(0, -2)  # [batch * seq, in]
        grad_weights: list[Tensor | None] = []
        for row, bias in zip(rows, weights[1::2], strict=True):
            grad_weights += [row.T @ whole, None if bias is None else row.sum(0)]
        return sending.wait(), None, *grad_weights


def sum_of_products(lefts: list[Tensor], rights: list[Tensor]) -> Tensor:
    """``lefts[0] @ rights[0] + lefts[1] @ rights[1] + ...``, added up in place."""
    total = lefts[0] @ rights[0]
    for left, right in zip(lefts[1:], rights[1:], strict=True):
        total.addmm_(left, right)
    return total

"""What the ranks of the tensor-parallel lab do. Like ``work.py``, it must not import views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipar import Axis, comm, pacing
from minipar.products import Products
from minipar.tensor_parallel import ColumnParallelLinear, Region, RowParallelLinear
from minipar.trace import Span, tracer

COLUMN_ROW, ROW_COLUMN = "column-row", "row-column"
PRODUCTS = ("F up", "F down", "B down", "B down", "B up", "B up")  # in backward: the gradient of the input, and of the weights
ALONE = Axis("alone", 1, 0, (0,))


class NamedProducts(Products):
    """Every matrix product gets a span of its own, named from ``names``, and lasts as long as on the paced device."""

    def __init__(self, names: Iterator[str]) -> None:
        super().__init__()
        self.names = names

    @contextmanager
    def around(self, flops: float) -> Iterator[None]:
        with tracer.span(next(self.names)), pacing.compute(flops):
            yield


class SplitMLP(nn.Module):
    """An MLP, ``[1, tokens, width]`` to the same, whose two matrices are split in one order or the other."""

    def __init__(self, width: int, axis: Axis, order: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        up, down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        region = Region(axis, overlap=False)
        self.up: ColumnParallelLinear | RowParallelLinear
        self.down: ColumnParallelLinear | RowParallelLinear
        if order == COLUMN_ROW:
            self.up, self.down = ColumnParallelLinear(up, region), RowParallelLinear(down, region)
        else:
            self.up = RowParallelLinear(up, region, split_input=True)
            self.down = ColumnParallelLinear(down, region, gather_output=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def mlp_step(width: int, tokens: int, order: str) -> tuple[list[Span], list[list[int]], float]:
    """On each rank: forward and backward of one MLP.

    Returns the spans, the shapes of this rank's two weights, and (on rank 0, for all agree) by how much the output and the
    gradient of the input differ from the whole MLP's.
    """
    axis = comm.world()
    mlp = SplitMLP(width, axis, order)
    x = torch.randn(1, tokens, width)
    pacer = pacing.current()
    comm.pace(None)
    _both_ways(mlp, x)  # the first products of a process take longer: not paced, and not watched
    comm.pace(None if pacer is None else pacer.cluster, axis.rank)
    comm.barrier(axis)
    with NamedProducts(iter(PRODUCTS)), tracer.watch() as spans:
        found = _both_ways(mlp, x)
    shapes = [list(layer.weight.shape) for layer in (mlp.up, mlp.down)]
    return spans, shapes, 0.0 if axis.rank else _difference(found, _both_ways(SplitMLP(width, ALONE, order), x))


def _difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))


def _both_ways(mlp: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of ``x`` for a loss that is the sum of squares."""
    x = x.clone().requires_grad_()
    y = mlp(x)
    with tracer.during("backward"):
        y.pow(2).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad

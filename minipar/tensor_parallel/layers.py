"""A transformer layer's two halves with their work shared: attention by heads, the MLP by hidden units.

Each is column-parallel, then row-parallel: nothing is sent in between, because heads do not look at each other and GELU works
on one hidden unit at a time.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from minipar.model import MLP, Attention
from minipar.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear, Weights, column_products
from minipar.tensor_parallel.region import Region
from minipar.tensor_parallel.shares import also_sum_over, shares


class TensorParallelMLP(nn.Module):
    """``[batch, seq, width]`` to the same; each rank holds ``ffn / tp`` hidden units."""

    def __init__(self, whole: MLP, region: Region) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(whole.up, region)
        self.down = RowParallelLinear(whole.down, region)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))  # hidden: [batch, seq, ffn / tp]


class TensorParallelAttention(nn.Module):
    """``[batch, seq, width]`` to the same; each rank holds ``heads / tp`` heads (some one more, where they do not divide).

    Keys and values are split by heads as well. Where the shared heads of grouped-query attention are too few or do not divide,
    every rank keeps the whole key and value matrices and uses the rows that its own heads need; their gradients are partial then.
    """

    def __init__(self, whole: Attention, region: Region) -> None:
        super().__init__()
        self.region, self.core, self.head_dim = region, whole.core, whole.head_dim
        heads, kv_heads = whole.q.out_features // self.head_dim, whole.k.out_features // self.head_dim
        self.q = ColumnParallelLinear(whole.q, region, unit=self.head_dim)
        self.o = RowParallelLinear(whole.o, region, unit=self.head_dim)
        self.kv_rows: list[int] | None = None
        if kv_heads == heads or kv_heads % region.axis.size == 0:
            self.k: ColumnParallelLinear | nn.Linear = ColumnParallelLinear(whole.k, region, unit=self.head_dim)
            self.v: ColumnParallelLinear | nn.Linear = ColumnParallelLinear(whole.v, region, unit=self.head_dim)
        else:
            self.k, self.v = whole.k, whole.v
            self.kv_rows = _kv_rows(heads, kv_heads, self.head_dim, region)
            for param in (*self.k.parameters(), *self.v.parameters()):
                also_sum_over(param, region.axis)

    def forward(self, x: Tensor) -> Tensor:
        query: Weights = (self.q.weight, self.q.bias)
        layers = [query, self._own_rows(self.k), self._own_rows(self.v)]
        # each [batch, heads / tp, seq, head_dim]
        q, k, v = (self._heads(y) for y in column_products(x, layers, self.region))
        out = self.core(q, k, v)
        return self.o(out.transpose(1, 2).flatten(2))

    def _own_rows(self, layer: ColumnParallelLinear | nn.Linear) -> Weights:
        if self.kv_rows is None:
            return layer.weight, layer.bias
        return layer.weight[self.kv_rows], None if layer.bias is None else layer.bias[self.kv_rows]

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def _kv_rows(heads: int, kv_heads: int, head_dim: int, region: Region) -> list[int]:
    """The rows of a whole key or value matrix that this rank's query heads need, head by head."""
    sizes = shares(heads, region.axis, "heads")
    first = sum(sizes[: region.axis.rank])
    needed = [head // (heads // kv_heads) for head in range(first, first + sizes[region.axis.rank])]
    if len(set(needed)) == 1:
        needed = needed[:1]  # all of them share one
    return [kv * head_dim + i for kv in needed for i in range(head_dim)]

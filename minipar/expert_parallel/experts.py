"""The experts: as many gated MLPs as there are experts, each over its own rows and no others.

Rows of one expert lie together, so every expert is one plain matrix product over its slice: a *grouped* matmul, with no padding up
to a capacity and no work for an expert without a row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minipar import pacing
from minipar.trace import tracer


def grouped_matmul(x: Tensor, w: Tensor, counts: list[int]) -> Tensor:
    """``[rows, in]`` times ``[groups, in, out]`` to ``[rows, out]``: the first ``counts[0]`` rows by ``w[0]``, and so on.

    Takes its modelled time where the rank is paced.
    """
    if x.shape[1] != w.shape[1] or len(counts) != w.shape[0] or sum(counts) != x.shape[0]:
        raise ValueError(f"cannot multiply rows {list(x.shape)} in groups of {counts} by weights {list(w.shape)}")
    return _GroupedMatmul.apply(x, w, counts)


class _GroupedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.counts = counts
        out = x.new_empty(x.shape[0], w.shape[2])
        with tracer.span("experts"), pacing.compute(flops=2 * x.numel() * w.shape[2]):
            for i, (xs, ys) in enumerate(zip(x.split(counts), out.split(counts), strict=True)):
                if len(xs):
                    torch.mm(xs, w[i], out=ys)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        x_grad, w_grad = torch.empty_like(x), torch.empty_like(w)
        pieces = (t.split(ctx.counts) for t in (x, grad.contiguous(), x_grad))
        with tracer.span("experts"), pacing.compute(flops=4 * x.numel() * w.shape[2]):
            for i, (xs, gs, x_grads) in enumerate(zip(*pieces, strict=True)):
                if len(xs):
                    torch.mm(gs, w[i].T, out=x_grads)
                    torch.mm(xs.T, gs, out=w_grad[i])
                else:
                    w_grad[i].zero_()  # an expert without a row has a gradient all the same, or a sync would wait for it
        return x_grad, w_grad, None


class Experts(nn.Module):
    """``silu(x gate) * (x up)``, then ``down``, for each expert (Shazeer 2020, "GLU variants").

    Rows ``[rows, width]``, those of one expert together, to the same shape. The weights are ``[experts, width, ffn]`` and
    ``[experts, ffn, width]``: a rank holds some of the experts, or (tensor parallel inside) a part of every expert's ``ffn``.
    """

    def __init__(self, experts: int, width: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(0.02 * torch.randn(experts, width, ffn))
        self.up = nn.Parameter(0.02 * torch.randn(experts, width, ffn))
        self.down = nn.Parameter(0.02 * torch.randn(experts, ffn, width))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        hidden = F.silu(grouped_matmul(rows, self.gate, counts)) * grouped_matmul(rows, self.up, counts)  # [rows, ffn]
        return grouped_matmul(hidden, self.down, counts)

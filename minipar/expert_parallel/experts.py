"""The experts: as many gated MLPs as there are experts, each over its own rows and no others.

Rows of one expert lie together, so every expert is a few plain matrix products over its slice: *grouped* matmuls, with no padding
up to a capacity and no work for an expert without a row. One expert goes from its rows to its outputs before the next one starts,
so that what it computes in between is still in the cache when it is needed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minipar import pacing
from minipar.trace import tracer


class Experts(nn.Module):
    """``(silu(x gate) * (x up)) down`` for each expert (SwiGLU; Shazeer 2020).

    Rows ``[rows, width]``, those of one expert together, to the same shape; ``counts`` says how many rows each expert has. The
    weights are ``[experts, width, ffn]`` and ``[experts, ffn, width]``: a rank holds some of the experts, or (tensor parallel
    inside) a part of every expert's ``ffn``. Takes its modelled time where the rank is paced.
    """

    def __init__(self, experts: int, width: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(0.02 * torch.randn(experts, width, ffn))
        self.up = nn.Parameter(0.02 * torch.randn(experts, width, ffn))
        self.down = nn.Parameter(0.02 * torch.randn(experts, ffn, width))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        experts, width, _ = self.gate.shape
        if rows.shape[1] != width or len(counts) != experts or sum(counts) != len(rows):
            raise ValueError(f"{experts} experts of width {width} cannot take rows {list(rows.shape)} in groups of {counts}")
        return _GroupedMLP.apply(rows, self.gate, self.up, self.down, counts, torch.is_grad_enabled())


class _GroupedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, counts: list[int], training: bool) -> Tensor:
        out = torch.empty_like(x)
        hidden = []  # what the backward needs: each expert's two products before the activation
        with tracer.span("experts"), pacing.compute(flops=6 * len(x) * gate[0].numel()):
            for xs, ys, *w in zip(x.split(counts), out.split(counts), gate, up, down, strict=True):
                g, u = xs @ w[0], xs @ w[1]  # [rows of this expert, ffn]
                torch.mm(F.silu(g).mul_(u), w[2], out=ys)
                if training:
                    hidden += [g, u]
        if training:
            ctx.counts = counts
            ctx.save_for_backward(x, gate, up, down, *hidden)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, down, *hidden = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in (x, gate, up, down)]
        rows = (t.split(ctx.counts) for t in (x, grad.contiguous(), grads[0]))
        pieces = zip(*rows, hidden[::2], hidden[1::2], gate.mT, up.mT, down.mT, *grads[1:], strict=True)
        with tracer.span("experts"), pacing.compute(flops=12 * len(x) * gate[0].numel()):
            for xs, ys, xs_grad, g, u, gate_t, up_t, down_t, gate_grad, up_grad, down_grad in pieces:
                s = F.silu(g)  # without a row the products below are zeros: a gradient all the same
                torch.mm((s * u).T, ys, out=down_grad)
                h = ys @ down_t  # gradient of the product silu(g) * u, [rows of this expert, ffn]
                g_grad = torch.ops.aten.silu_backward(h * u, g)
                u_grad = h.mul_(s)
                torch.mm(xs.T, g_grad, out=gate_grad)
                torch.mm(xs.T, u_grad, out=up_grad)
                torch.mm(g_grad, gate_t, out=xs_grad).addmm_(u_grad, up_t)
        return *grads, None, None

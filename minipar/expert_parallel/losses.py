"""What keeps a router in balance and its logits small: two auxiliary losses, and a bias that needs no loss.

A router rewards the experts that are already good with more tokens, which makes them better still: left alone, it collapses. The
balance loss pulls against it (Shazeer et al. 2017, in the form of Fedus et al. 2021); the bias of DeepSeek-V3 (Wang et al. 2024)
only shifts the selection, step by step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def balance_loss(probs: Tensor, counts: Tensor, tokens: int) -> Tensor:
    """This rank's share of ``E * sum_e f_e P_e`` over the *global* batch: 1 when all experts are equally busy, E at worst.

    ``f_e``, the share of all routed copies that expert e got, comes from the global ``counts`` [E]; ``P_e`` is the mean probability
    over all ``tokens`` of the global batch, of which this rank adds its own part (``probs`` [T, E]). Counted per rank and averaged,
    it would be another loss: a product of means is not the mean of products.
    """
    shares = counts.to(probs.dtype) / counts.sum().clamp(min=1)  # f
    return probs.shape[1] * (probs.sum(dim=0) * shares).sum() / max(tokens, 1)


def z_loss(logits: Tensor, tokens: int) -> Tensor:
    """This rank's share of the mean squared log-sum-exp of the logits [T, E] over ``tokens`` in all (Zoph et al. 2022)."""
    return torch.logsumexp(logits, dim=1).pow(2).sum() / max(tokens, 1)


def adjusted_bias(bias: Tensor, counts: Tensor, rate: float) -> Tensor:
    """The selection bias [E] for the next step: up by ``rate`` where an expert got less than the mean of ``counts``, else down."""
    counts = counts.to(bias.dtype)
    return bias + rate * torch.sign(counts.mean() - counts)


def with_auxiliary(y: Tensor, loss: Tensor) -> Tensor:
    """``y``, unchanged; but its backward also starts that of ``loss``, with a gradient of 1.

    So a layer's own loss reaches its router wherever the layer runs (in a pipeline stage, or twice under recomputation), and nobody
    has to carry it to the end of the model. The losses are summed over tokens and divided by the global count like the main one, so
    gradients of all ranks simply add up.
    """
    return _WithAuxiliary.apply(y, loss)


class _WithAuxiliary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss)

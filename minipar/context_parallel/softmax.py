"""Attention over a part of the keys, and how parts are put together.

The softmax needs the sum over all keys. A part knows only its own sum, so it hands on, besides its result, the logarithm of that
sum; two parts are then merged exactly, by weights that never exceed 1 (Milakov and Gimelshein 2018; Dao et al. 2022). All of it is
in float32 or better: in bfloat16 each merge would round again.

Shapes: ``q`` and results ``[batch, heads, queries, head_dim]``, ``k`` and ``v`` ``[batch, kv_heads, keys, head_dim]``, where each
key-value head is shared by ``heads / kv_heads`` query heads; ``lse`` ``[batch, heads, queries]``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FORWARD_FLOPS, BACKWARD_FLOPS = 4, 10  # for each query-key pair and element of a head: two products, and five (the scores anew)


class Part(NamedTuple):
    """Attention over some of the keys."""

    out: Tensor  # [batch, heads, queries, head_dim], as if these keys were all
    lse: Tensor  # [batch, heads, queries], log of the sum of exp(score) over these keys


def merge(a: Part | None, b: Part) -> Part:
    """Attention over the keys of ``a`` (None: no keys yet) and those of ``b`` together."""
    if a is None:
        return b
    lse = torch.logaddexp(a.lse, b.lse)
    out = a.out * (a.lse - lse).exp().unsqueeze(-1) + b.out * (b.lse - lse).exp().unsqueeze(-1)
    return Part(out, lse)


def attend(q: Tensor, k: Tensor, v: Tensor, masked: bool) -> Part:
    """Attention of ``q`` over these keys; ``masked``: the i-th query sees the keys up to the i-th."""
    scores = _scores(q, k, masked)
    greatest = scores.amax(-1, keepdim=True)
    weights = scores.sub_(greatest).exp_()
    total = weights.sum(-1, keepdim=True)
    out = torch.einsum("bkgqs,bksd->bkgqd", weights, _wide(v)) / total
    return Part(out.flatten(1, 2), (greatest + total.log()).squeeze(-1).flatten(1, 2))


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, masked: bool, lse: Tensor, grad: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What these keys add to the gradients of ``q``, ``k`` and ``v``.

    ``lse`` is that over *all* keys, so each weight comes out as in the whole softmax. ``grad`` is the gradient of the whole result
    and ``delta`` ``[batch, heads, queries]`` its inner product with that result.
    """
    groups = k.shape[1]
    weights = _scores(q, k, masked).sub_(_grouped(lse, groups).unsqueeze(-1)).exp_()  # [batch, kv_heads, group, queries, keys]
    grad = _grouped(_wide(grad), groups)
    grad_v = torch.einsum("bkgqs,bkgqd->bksd", weights, grad)
    grad_scores = torch.einsum("bkgqd,bksd->bkgqs", grad, _wide(v)).sub_(_grouped(delta, groups).unsqueeze(-1)).mul_(weights)
    grad_scores.mul_(q.shape[-1] ** -0.5)
    grad_q = torch.einsum("bkgqs,bksd->bkgqd", grad_scores, _wide(k)).flatten(1, 2)
    grad_k = torch.einsum("bkgqs,bkgqd->bksd", grad_scores, _grouped(_wide(q), groups))
    return grad_q, grad_k, grad_v


def _scores(q: Tensor, k: Tensor, masked: bool) -> Tensor:
    """``[batch, kv_heads, group, queries, keys]``"""
    scores = torch.einsum("bkgqd,bksd->bkgqs", _grouped(_wide(q), k.shape[1]) * q.shape[-1] ** -0.5, _wide(k))
    if masked:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(later, float("-inf"))
    return scores


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Heads sorted by the key-value head that they share: ``[batch, heads, ...]`` to ``[batch, kv_heads, group, ...]``."""
    return x.unflatten(1, (groups, -1))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))

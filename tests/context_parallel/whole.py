"""Attention over a sequence that is cut over the ranks, beside the same attention in one process."""

import torch
import torch.nn.functional as F
from torch import Tensor

from minipar import Mesh
from minipar.context_parallel import ContextAttention, TokenLayout

SEQ, HEADS, HEAD_DIM = 24, 12, 4


def inputs(kv_heads: int = HEADS, scale: float = 1.0, seq: int = SEQ) -> list[Tensor]:
    """``q, k, v`` and the result's gradient, float64, the same on every rank; strong enough scores to make a mistake show."""
    generator = torch.Generator().manual_seed(11)
    shapes = [(2, heads, seq, HEAD_DIM) for heads in (HEADS, kv_heads, kv_heads, HEADS)]
    q, k, v, grad = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [q * 2 * scale, k * scale, v, grad]


def whole(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> list[Tensor]:
    """The result and the gradients of ``q``, ``k`` and ``v``, by torch's own attention."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=k.shape[1] != q.shape[1])
    out.backward(grad)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def cut(tensors: list[Tensor], own: Tensor) -> list[Tensor]:
    return [x[:, :, own].contiguous() for x in tensors]


def errors(
    layout: TokenLayout,
    causal: bool = True,
    kv_heads: int = HEADS,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
    seq: int = SEQ,
) -> list[float]:
    """Relative errors of this rank's part of the result and of the three gradients, in ``dtype`` against float64."""
    axis = Mesh(cp=layout.ranks)["cp"]
    tensors = [x.to(dtype).double() for x in inputs(kv_heads, scale, seq)]  # what ``dtype`` can hold
    own = layout.positions(seq, axis.rank)
    *leaves, grad = cut([x.to(dtype) for x in tensors], own)
    leaves = [x.requires_grad_() for x in leaves]
    out = ContextAttention(axis, layout, causal)(*leaves)
    assert out.dtype == dtype
    out.backward(grad)
    expected = whole(*tensors, causal)
    got = [out, *(leaf.grad for leaf in leaves)]
    pairs = zip(got, cut(expected, own), expected, strict=True)
    return [((a.double() - b).abs().max() / all_of_it.abs().max()).item() for a, b, all_of_it in pairs]

"""What the ranks of the long-context lab do. Like ``work.py``, it must not import views."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minipar import comm
from minipar.context_parallel import ContextAttention, Layout
from minipar.trace import Span, tracer

HEADS, HEAD_DIM = 8, 16


def attention_step(method: str, seq: int) -> tuple[list[Span], int, float]:
    """On each rank: causal attention over a sequence that is cut over the ranks, forward and backward.

    Returns the spans, the bytes kept for backward, and by how much result and gradients differ from attention on one rank.
    """
    axis = comm.world()
    layout = Layout.of(method, axis.size)
    torch.manual_seed(0)
    whole = torch.randn(4, 1, HEADS, seq, HEAD_DIM)  # q, k, v and the result's gradient
    own = layout.positions(seq, axis.rank)
    mine = whole[..., own, :].clone().requires_grad_()
    comm.barrier(axis)
    with tracer.watch() as spans:
        out, kept = kept_for_backward(ContextAttention(axis, layout), mine)
        with tracer.during("backward"):
            (out * whole[3][..., own, :]).sum().backward()
    assert mine.grad is not None
    found = torch.stack([out.detach(), *mine.grad[:3]])
    alone = whole.clone().requires_grad_()
    q, k, v = alone[:3].unbind(0)
    wanted_out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (wanted_out * whole[3]).sum().backward()
    assert alone.grad is not None
    wanted = torch.stack([wanted_out.detach(), *alone.grad[:3]])[..., own, :]
    return [s for s in spans if s.name != "barrier"], kept, float((found - wanted).norm() / wanted.norm())


def kept_for_backward(attention: ContextAttention, qkv: Tensor) -> tuple[Tensor, int]:
    """The result, and the bytes of all tensors that autograd holds for its backward pass."""
    held: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        held.append(x.detach())
        return held[-1]

    q, k, v = (x.clone() for x in qkv[:3])
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = attention(q, k, v)
    return out, sum({x.data_ptr(): x.nbytes for x in held}.values())

"""What the ranks of the long-context lab do. Like ``work.py``, it must not import views."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minipar import Mesh, comm, pacing
from minipar.context_parallel import ContextAttention, TokenLayout
from minipar.context_parallel.softmax import BACKWARD_FLOPS, FORWARD_FLOPS
from minipar.trace import Span, tracer

HEADS, HEAD_DIM = 8, 16
WARM = 16  # tokens for each rank, a multiple of what any layout needs


def attention_step(method: str, seq: int, tp: int = 1) -> tuple[list[Span], int, float]:
    """On each rank: causal attention, forward and backward; ``tp`` neighbours share its heads, and all others the sequence.

    Returns the spans, the bytes kept for backward, and by how much result and gradients differ from attention on one rank.
    """
    world = comm.world()
    mesh = Mesh(cp=world.size // tp, tp=tp)
    attention = PacedAttention(mesh["cp"], TokenLayout.of(method, mesh["cp"].size))
    heads = slice(mesh["tp"].rank * HEADS // tp, (mesh["tp"].rank + 1) * HEADS // tp)
    pacer = pacing.current()
    comm.pace(None)
    both_ways(attention, WARM * mesh["cp"].size, heads)  # the first products of a process take longer: not paced, not watched
    comm.pace(None if pacer is None else pacer.cluster, world.rank)
    comm.barrier(world)
    with tracer.watch() as spans:
        found, kept = both_ways(attention, seq, heads)
    return [s for s in spans if s.name != "barrier"], kept, difference(found, seq, heads, attention)


def tensors(seq: int, heads: slice) -> Tensor:
    """``[4, 1, own heads, seq, head_dim]``: q, k, v and the gradient of the result, of the same whole on every rank."""
    return torch.randn(4, 1, HEADS, seq, HEAD_DIM, generator=torch.Generator().manual_seed(0))[:, :, heads].contiguous()


def both_ways(attention: ContextAttention, seq: int, heads: slice) -> tuple[Tensor, int]:
    """This rank's result and gradients of q, k and v, in one tensor; and the bytes kept for backward."""
    own = attention.layout.positions(seq, attention.axis.rank)
    mine = tensors(seq, heads)[..., own, :].requires_grad_()
    out, kept = kept_for_backward(attention, mine)
    with tracer.during("backward"):
        (out * mine[3].detach()).sum().backward()
    assert mine.grad is not None
    return torch.stack([out.detach(), *mine.grad[:3]]), kept


def difference(found: Tensor, seq: int, heads: slice, attention: ContextAttention) -> float:
    """Relative, from the same attention on one rank."""
    whole = tensors(seq, heads).requires_grad_()
    q, k, v = whole[:3].unbind(0)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (out * whole[3].detach()).sum().backward()
    assert whole.grad is not None
    own = attention.layout.positions(seq, attention.axis.rank)
    wanted = torch.stack([out.detach(), *whole.grad[:3]])[..., own, :]
    return float((found - wanted).norm() / wanted.norm())


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


class PacedAttention(ContextAttention):
    """A ring paces its own steps; attention over the whole sequence on one rank, torch's own, is paced here."""

    def _between_teams(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.layout.ring > 1:
            return super()._between_teams(q, k, v)
        flops = float(self.layout.work_at(q.shape[2], 0, 0) * q.shape[1] * q.shape[3])
        began: list[float] = []  # of the backward pass, noted where it comes in and read where it leaves
        q, k, v = _Leaves.apply(q, k, v, BACKWARD_FLOPS * flops, began)
        with tracer.span("F k0"), pacing.compute(FORWARD_FLOPS * flops):
            out = super()._between_teams(q, k, v)
        return _Enters.apply(out, began)


class _Enters(torch.autograd.Function):
    """Notes when the gradient of the result arrives."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, began: list[float]) -> Tensor:
        ctx.began = began
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.began.append(tracer.clock())
        return grad, None


class _Leaves(torch.autograd.Function):
    """Hands on the gradients of q, k and v when the modelled device would have them, and writes down the span."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, flops: float, began: list[float]) -> tuple[Tensor, ...]:
        ctx.flops, ctx.began = flops, began
        return q.view_as(q), k.view_as(k), v.view_as(v)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (start,) = ctx.began
        pacer = pacing.current()
        if pacer is not None:
            with pacing.compute(seconds=max(0.0, pacer.cluster.device.seconds(ctx.flops) - (tracer.clock() - start))):
                pass
        tracer.add("B k0", "compute", start, tracer.clock())
        return (*grads, None, None)

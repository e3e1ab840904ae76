"""Ring attention: queries stay, keys and values go round (Liu, Zaharia and Abbeel 2023).

    step 0        step 1        step 2           each rank computes with the keys that it holds
    q0 with k0    q0 with k2    q0 with k1       and meanwhile passes them on to the next rank;
    q1 with k1    q1 with k0    q1 with k2       softmax.merge puts the parts together
    q2 with k2    q2 with k1    q2 with k0

No rank ever holds more than two pieces of the keys, so any length fits, given enough ranks. Each rank sends its piece n - 1 times
forward: (n - 1) / n of all keys and values. Backward the keys go round again, and their gradients follow one step behind: they set
out from the first other rank that used them, are added to at each, and come home after n - 1 steps as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minipar import comm, pacing
from minipar.comm import Pending
from minipar.context_parallel.layout import TokenLayout
from minipar.context_parallel.softmax import BACKWARD_FLOPS, FORWARD_FLOPS, Part, attend, attend_backward, merge
from minipar.mesh import Axis
from minipar.trace import tracer


@dataclass(frozen=True)
class Ring:
    """One ring of this rank's axis: the ranks at the same place of every team."""

    axis: Axis
    layout: TokenLayout

    @property
    def size(self) -> int:
        return self.layout.ring

    @property
    def station(self) -> int:
        return self.axis.rank // self.layout.ulysses

    def source(self, step: int) -> int:
        """The station whose keys are here at ``step``."""
        return (self.station - step) % self.size

    def pass_on(self, x: Tensor) -> Pending:
        """Send ``x`` to the next station; ``wait()[0]`` is the like-shaped tensor of the one before."""
        member = self.axis.rank % self.layout.ulysses
        after, before = ((self.station + hop) % self.size * self.layout.ulysses + member for hop in (1, -1))
        return comm.async_exchange([(x, after)], [(torch.empty_like(x), before)], self.axis)

    @contextmanager
    def computing(self, name: str, step: int, q: Tensor, causal: bool, flops: int) -> Iterator[None]:
        """A step's computation on the timeline, ``F k2``; ``flops`` for each query-key pair and element of a head."""
        batch, heads, tokens, head_dim = q.shape
        pairs = batch * heads * self.layout.work_at(tokens * self.size, self.station, step, causal)
        with tracer.span(f"{name} k{self.source(step)}"), pacing.compute(float(flops * pairs * head_dim)):
            yield


def ring_attention(q: Tensor, k: Tensor, v: Tensor, ring: Ring, causal: bool = True) -> Tensor:
    """Attention of this rank's queries over the keys of all stations.

    ``q`` and the result are ``[batch, heads, seq / stations, head_dim]``, the tokens as ``ring.layout`` deals them out; ``k`` and
    ``v`` may have fewer heads, each shared by a group.
    """
    return _RingAttention.apply(q, torch.stack([k, v]), ring, causal)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, ring: Ring, causal: bool) -> Tensor:
        chunks = len(ring.layout.chunks(0))
        queries = q.chunk(chunks, 2)
        parts: list[Part | None] = [None] * chunks
        held = kv  # [2, batch, kv_heads, seq / stations, head_dim]
        for step in range(ring.size):
            arriving = ring.pass_on(held) if step < ring.size - 1 else None
            pieces = held.chunk(chunks, 3)
            if pairs := ring.layout.pairs(ring.station, ring.source(step), causal):
                with ring.computing("F", step, q, causal, FORWARD_FLOPS):
                    for i, j, masked in pairs:
                        keys, values = pieces[j]
                        parts[i] = merge(parts[i], attend(queries[i], keys, values, masked))
            if arriving:
                held = arriving.wait()[0]
        done = [part for part in parts if part is not None]  # every chunk has met its own keys at step 0
        out = torch.cat([p.out.transpose(1, 2) for p in done], 1)  # [batch, seq / stations, heads, head_dim]
        out = out.to(q.dtype).transpose(1, 2)  # in memory token by token, as the layer after it reads it: it is kept once for both
        lse = torch.cat([p.lse for p in done], 2)
        ctx.save_for_backward(q, kv, out, lse)
        ctx.ring, ctx.causal = ring, causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, kv, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        delta = (grad.to(lse.dtype) * out).sum(-1)  # [batch, heads, seq / stations]
        grad_q = torch.zeros(q.shape, dtype=lse.dtype, device=q.device)
        held, own, travelling = kv, torch.empty(0), None
        for step in range(ring.size):
            arriving = ring.pass_on(held) if step < ring.size - 1 else None
            grad_kv = torch.zeros(kv.shape, dtype=lse.dtype, device=q.device)
            if pairs := ring.layout.pairs(ring.station, ring.source(step), ctx.causal):
                with ring.computing("B", step, q, ctx.causal, BACKWARD_FLOPS):
                    for i, j, masked in pairs:
                        _add_pair(i, j, masked, (q, held, lse, grad, delta), grad_q, grad_kv, ring)
            if step == 0:
                own = grad_kv
            else:
                travelling = ring.pass_on(grad_kv if travelling is None else grad_kv.add_(travelling.wait()[0]))
            if arriving:
                held = arriving.wait()[0]
        if travelling:
            own.add_(travelling.wait()[0])
        return grad_q.to(q.dtype), own.to(kv.dtype), None, None


def _add_pair(i: int, j: int, masked: bool, saved: tuple[Tensor, ...], grad_q: Tensor, grad_kv: Tensor, ring: Ring) -> None:
    """Add what query chunk ``i`` and key chunk ``j`` contribute to the gradients."""
    q, kv, lse, grad, delta = saved
    chunks = len(ring.layout.chunks(0))
    q, lse, grad, delta, grad_q = (x.chunk(chunks, 2)[i] for x in (q, lse, grad, delta, grad_q))
    (k, v), grads = kv.chunk(chunks, 3)[j], grad_kv.chunk(chunks, 3)[j]
    for total, part in zip((grad_q, *grads), attend_backward(q, k, v, masked, lse, grad, delta), strict=True):
        total.add_(part)

"""Attention over a sequence that is cut over the ranks: Ulysses within a team, a ring between the teams."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from minipar.context_parallel.layout import TokenLayout
from minipar.context_parallel.ring import Ring, ring_attention
from minipar.context_parallel.ulysses import heads_from_sequence, refuse_heads, sequence_from_heads, share_out
from minipar.mesh import Axis


@dataclass(frozen=True)
class ContextAttention:
    """In place of a model's attention core: ``q`` is ``[batch, heads, seq / cp, head_dim]``, and so is the result."""

    axis: Axis
    layout: TokenLayout
    causal: bool = True

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        team = self.layout.ulysses
        if team == 1:
            return self._between_teams(q, k, v)
        refuse_heads(q.shape[1], team)
        k, v = share_out(k, team), share_out(v, team)
        q, k, v = (heads_from_sequence(x, self.axis, team) for x in (q, k, v))
        return sequence_from_heads(self._between_teams(q, k, v), self.axis, team)

    def _between_teams(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of a whole team's queries, ``[batch, heads / team, seq / stations, head_dim]``."""
        if self.layout.ring == 1:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=k.shape[1] != q.shape[1])
        return ring_attention(q, k, v, Ring(self.axis, self.layout), self.causal)

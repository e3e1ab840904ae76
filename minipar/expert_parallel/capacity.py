"""Capacity: how many copies an expert may take, and which it turns away.

One rule here: ``capacity = ceil(factor * tokens * k / experts)``, in exact arithmetic, as in Megatron-LM and DeepSpeed. Systems
differ (for 10 tokens, 4 experts, k = 2 and factor 1.25 the exact value is 6.25; these two take 7, Megablocks and Tutel 6), so the
same factor may drop other tokens elsewhere.

Copies queue up at their expert and those beyond its capacity are dropped: the token goes on through the residual connection, with
the weights of its other experts as they were.

    order "position"   first choices before second choices, then in order of the tokens (GShard, Lepikhin et al. 2020)
    order "score"      the highest router weight first; of equals, in order of the tokens

    scope "global"     one queue for the whole batch: what is dropped does not depend on the number of ranks that share it by rows
                       (nor, by score and without ties, on how they share it)
    scope "rank"       each rank has queues for its own tokens, as most systems do: nothing to communicate, but what is dropped
                       changes with the number of ranks
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from minipar import comm
from minipar.expert_parallel.router import Routing
from minipar.mesh import Axis


def capacity(tokens: int, experts: int, k: int, factor: float) -> int:
    """Copies that one expert may take: ``ceil(factor * tokens * k / experts)``, the factor read as the decimal it is written as."""
    if not factor > 0:
        raise ValueError(f"a capacity factor of {factor} leaves no expert any room: give one above 0, or None for dropless")
    return math.ceil(Fraction(str(factor)) * tokens * k / experts)


def queue_positions(expert: Tensor, key: Tensor) -> Tensor:
    """``[copies]``: each copy's place in the queue of its expert, from 0, by rising ``key``; of equals, the earlier copy first."""
    order = key.argsort(stable=True)
    order = order[expert[order].argsort(stable=True)]  # by expert, then by key, then by place
    counts = torch.bincount(expert)
    starts = counts.cumsum(0) - counts  # [experts], where each queue begins
    places = torch.arange(len(expert), device=expert.device) - starts[expert[order]]
    return torch.empty_like(places).scatter_(0, order, places)


def within_capacity(routing: Routing, limit: int, order: str, axis: Axis) -> Tensor:
    """``[copies]`` bool: true where the copy finds room. The queues run over all ranks of ``axis`` (one rank: its own tokens)."""
    key = routing.choice if order == "position" else -routing.weight.detach()
    experts, before = _all_ranks(routing.expert, axis)
    keys, _ = _all_ranks(key, axis)
    places = queue_positions(experts, keys)
    return places[before : before + len(key)] < limit


def _all_ranks(x: Tensor, axis: Axis) -> tuple[Tensor, int]:
    """``x`` of all ranks joined in order of rank, though they hold different numbers, and how many come before this rank's."""
    lengths = comm.all_gather(torch.tensor([len(x)], device=x.device), axis).tolist()
    padded = torch.cat([x, x.new_zeros(max(lengths) - len(x))])
    pieces = comm.all_gather(padded, axis).split(max(lengths)) if max(lengths) else (x,) * axis.size
    joined = torch.cat([piece[:length] for piece, length in zip(pieces, lengths, strict=True)])
    return joined, sum(lengths[: axis.rank])

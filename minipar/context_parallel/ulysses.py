"""Ulysses: trade a piece of the sequence for a piece of the heads, and back (Jacobs et al. 2023).

    before     rank 0: tokens 0-3, all heads        after     rank 0: all tokens, heads 0-1
               rank 1: tokens 4-7, all heads                  rank 1: all tokens, heads 2-3

Each head sees the whole sequence, so attention itself stays as it was; two all-to-alls per pass do the trade, and their bytes per
rank fall as more ranks take part. But there cannot be more ranks than heads: beyond that, a ring joins teams of such ranks.
"""

from __future__ import annotations

from math import gcd

from torch import Tensor

from minipar.comm import twins
from minipar.mesh import Axis


def heads_from_sequence(x: Tensor, axis: Axis, team: int) -> Tensor:
    """``[batch, heads, tokens, head_dim]`` to ``[batch, heads / team, tokens * team, head_dim]``, within teams of neighbours."""
    groups = x.unflatten(1, (team, -1)).transpose(0, 1)  # [team, batch, heads / team, tokens, head_dim]
    return _trade(groups, axis, team).movedim(0, 2).flatten(2, 3)


def sequence_from_heads(x: Tensor, axis: Axis, team: int) -> Tensor:
    """The way back: ``[batch, heads / team, tokens * team, head_dim]`` to ``[batch, heads, tokens, head_dim]``."""
    pieces = x.unflatten(2, (team, -1)).movedim(2, 0)  # [team, batch, heads / team, tokens, head_dim]
    return _trade(pieces, axis, team).transpose(0, 1).flatten(1, 2)


def share_out(kv: Tensor, team: int) -> Tensor:
    """Keys or values with each shared head repeated just as often as it takes to deal them out to a team."""
    return kv.repeat_interleave(team // gcd(kv.shape[1], team), 1)


def refuse_heads(heads: int, team: int) -> None:
    if heads % team:
        raise ValueError(
            f"Ulysses deals heads out to teams of {team} ranks, and {heads} heads do not divide: take a ring, or teams that divide"
        )


def _trade(rows: Tensor, axis: Axis, team: int) -> Tensor:
    """One row to and from each member of this rank's team, none to the rest of the axis."""
    first = axis.rank // team * team
    counts = [int(first <= rank < first + team) for rank in range(axis.size)]
    return twins.all_to_all(rows, axis, counts, counts)

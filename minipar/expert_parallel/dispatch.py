"""Tokens to their experts and back: dispatch and combine, each the other's transpose.

    spread      one row per copy: a token that goes to k experts becomes k rows         its gradient gathers
    all-to-all  rows to the ranks of their experts, as many as the counts say            its gradient goes the same way back
    gather      each token's rows weighted and added up, in order of its choices         its gradient spreads

Rows are sorted by expert before they leave, so that what goes to one rank is contiguous. The counts travel first: every rank must
know how much to expect. On arrival rows lie by source rank; they are regrouped by expert, and the way back undoes each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from minipar import comm
from minipar.mesh import Axis


@dataclass(frozen=True)
class Plan:
    """Where each row goes. ``E`` experts in all, in order over the ranks of the expert axis."""

    token: Tensor  # [rows]: the token of each row, rows sorted by expert
    row: Tensor  # [copies]: the row of each copy, copies in order of the tokens
    bags: Tensor  # [T]: the first copy of each token
    send: list[int]  # rows to each rank
    recv: list[int]  # rows from each rank
    regroup: Tensor | None  # [received]: received rows in order of this rank's experts; None: they are
    counts: list[int]  # received rows of each of this rank's experts


def experts_by_rank(experts: int, ranks: int) -> list[int]:
    """How many experts each rank of the expert axis holds: the first ranks one more where they do not divide."""
    if experts < ranks:
        raise ValueError(
            f"{experts} experts over {ranks} ranks would leave a rank without one: use ep={experts} or less (the ranks then hold "
            f"copies), or give busy experts replicas (minipar.expert_parallel.placement)"
        )
    return [experts // ranks + (rank < experts % ranks) for rank in range(ranks)]


def plan(expert: Tensor, token: Tensor, tokens: int, sizes: Sequence[int], axis: Axis) -> Plan:
    """Sort the copies by expert and tell every rank of ``axis`` how many are coming.

    ``expert`` and ``token`` [copies] are in order of the tokens, ``sizes`` says how many experts each rank holds.
    """
    order = expert.argsort(stable=True)  # [rows]
    row = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    copies = torch.bincount(token, minlength=tokens)  # [T]
    bags = copies.cumsum(0) - copies
    counts = torch.bincount(expert, minlength=sum(sizes))  # [E]
    send = [int(part.sum()) for part in counts.split(list(sizes))]
    mine = sizes[axis.rank]
    incoming = comm.all_to_all(counts, axis, sizes, [mine] * axis.size).view(axis.size, mine)  # [ranks, own experts]
    recv = incoming.sum(dim=1).tolist()
    return Plan(token[order], row, bags, send, recv, _by_expert(incoming), incoming.sum(dim=0).tolist())


def dispatch(x: Tensor, plan: Plan, axis: Axis) -> Tensor:
    """``[T, width]`` tokens of this rank to ``[received, width]`` rows for its experts, all rows of one expert together."""
    rows = _Spread.apply(x, plan.token, plan.row, plan.bags)
    rows = comm.twins.all_to_all(rows, axis, plan.send, plan.recv) if axis.size > 1 else rows
    return rows if plan.regroup is None else _Permute.apply(rows, plan.regroup)


def combine(rows: Tensor, weight: Tensor, plan: Plan, axis: Axis) -> Tensor:
    """The experts' ``[received, width]`` outputs back to their tokens, ``[T, width]``: the sum by ``weight`` [copies].

    A token without a copy gets zeros.
    """
    if plan.regroup is not None:
        rows = _Permute.apply(rows, plan.regroup.argsort())
    rows = comm.twins.all_to_all(rows, axis, plan.recv, plan.send) if axis.size > 1 else rows
    return _Gather.apply(rows, weight.to(rows.dtype), plan.token, plan.row, plan.bags)


def _by_expert(incoming: Tensor) -> Tensor | None:
    """The order that brings rows sorted by (source rank, expert) into order of (expert, source rank)."""
    ranks, experts = incoming.shape
    if ranks == 1 or experts == 1:
        return None
    labels = torch.arange(experts, device=incoming.device).repeat(ranks).repeat_interleave(incoming.flatten())
    return labels.argsort(stable=True)


def _sum_rows(rows: Tensor, row: Tensor, bags: Tensor, weight: Tensor | None = None) -> Tensor:
    """``[rows, width]`` to ``[T, width]``: each token's rows, weighted and added in order of its copies."""
    if not len(row):
        return rows.new_zeros(len(bags), rows.shape[1])
    return F.embedding_bag(row, rows, bags, mode="sum", per_sample_weights=weight)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, row: Tensor, bags: Tensor) -> Tensor:
        ctx.save_for_backward(row, bags)
        return x.index_select(0, token)  # [rows, width]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        row, bags = ctx.saved_tensors
        return _sum_rows(grad.contiguous(), row, bags), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, token: Tensor, row: Tensor, bags: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, token, row)
        return _sum_rows(rows, row, bags, weight)  # [T, width]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        rows, weight, token, row = ctx.saved_tensors
        spread = grad.index_select(0, token)  # [rows, width]: each row sees its token's gradient
        by_row = torch.empty_like(weight).scatter_(0, row, weight)
        weight_grad = torch.linalg.vecdot(rows, spread).index_select(0, row)  # [copies]
        return spread.mul_(by_row[:, None]), weight_grad, None, None, None


class _Permute(torch.autograd.Function):
    """Rows in another order; the gradient's rows go back to theirs."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return rows.index_select(0, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return torch.empty_like(grad).index_copy_(0, order, grad), None

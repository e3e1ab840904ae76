"""Lesson 12: the balance loss of a batch that is spread over the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong, cases
from course.exercises.findings import equal, no_tensor, wrong_value
from minipar import comm

EXPERTS, K = 5, 2


def inputs(case: Case) -> list[tuple[Tensor, Tensor]]:
    """By rank: ``probs [T, EXPERTS]`` float64 and ``expert [T, K]``. Ranks hold different tokens, and different numbers of them."""
    generator = torch.Generator().manual_seed(case.seed)
    held = []
    for rank in range(case.ranks):
        logits = torch.randn(4 + 5 * rank, EXPERTS, generator=generator, dtype=torch.float64)
        logits[:, rank] += 2.0  # each rank's text has its own favourite
        held.append((logits.softmax(1), logits.topk(K).indices))
    return held


def trial(answer: Any, case: Case) -> tuple[Any, Tensor | None]:
    """The share of the loss, and its gradient for ``probs``."""
    axis = comm.world()
    probs, expert = inputs(case)[axis.rank]
    leaf = probs.clone().requires_grad_()
    torch.set_default_dtype(torch.float64)  # a quotient of two counts is as precise as all else
    try:
        share = answer(leaf, expert.clone(), axis)
    finally:
        torch.set_default_dtype(torch.float32)
    if isinstance(share, Tensor) and share.requires_grad and share.numel() == 1:
        share.backward()
        share = share.detach()
    return share, leaf.grad


def judge(seen: Seen) -> str | None:
    held = inputs(seen.case)
    shares = [share for share, _ in seen.values]
    return (
        no_tensor(shares, torch.zeros((), dtype=torch.float64))
        or _whole_everywhere(shares, held)
        or wrong_value(shares, [loss(*held[r], held) for r in range(len(held))], "its share", _suspects(held))
        or _gradient(seen, held)
    )


def loss(probs: Tensor, expert: Tensor, held: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The share that ``probs`` has in the loss over all that is ``held``."""
    everyone = torch.cat([e for _, e in held])
    return EXPERTS * (frequency(everyone) * probs.sum(0)).sum() / len(everyone)


def frequency(expert: Tensor) -> Tensor:
    """``[EXPERTS]``: the share of the copies that each expert gets."""
    counts = torch.bincount(expert.flatten(), minlength=EXPERTS).double()
    return counts / counts.sum()


def _whole_everywhere(shares: list[Tensor], held: list[tuple[Tensor, Tensor]]) -> str | None:
    total = sum((loss(*own, held) for own in held), torch.zeros(()))
    if all(equal(share, total) for share in shares):
        return f"every rank returned the whole loss, {total:.3f}: added up over the ranks it would count {len(shares)} times."
    return None


def _suspects(held: list[tuple[Tensor, Tensor]]) -> dict[str, list[Tensor]]:
    n, tokens = len(held), sum(len(p) for p, _ in held)
    everyone, soft = torch.cat([e for _, e in held]), torch.cat([p for p, _ in held]).mean(0)
    own = [EXPERTS * (frequency(e) * p.mean(0)).sum() for p, e in held]
    right = [loss(*one, held) for one in held]
    first = frequency(everyone[:, :1])
    return {
        "its share is the loss of its own tokens alone: a product of means is not the mean of products.": own,
        f"its share is the loss of its own tokens alone, divided by {n} ranks: a product of means is not the mean of products.": [
            x / n for x in own
        ],
        "f was counted over this rank's tokens, P over all: an expert may be busy here and idle elsewhere.": [
            EXPERTS * (frequency(e) * p.sum(0)).sum() / tokens for p, e in held
        ],
        "P was averaged over this rank's tokens; its share counts them among all tokens.": [
            x * tokens / len(p) for x, (p, _) in zip(right, held, strict=True)
        ],
        "P was averaged over this rank's tokens, then over the ranks: tokens on a rank with few count for more.": [
            x * tokens / len(p) / n for x, (p, _) in zip(right, held, strict=True)
        ],
        "f was taken from the probabilities: it is what was really sent, in copies.": [
            EXPERTS * (soft * p.sum(0)).sum() / tokens for p, _ in held
        ],
        "f counts first choices only: every copy is work for an expert.": [
            EXPERTS * (first * p.sum(0)).sum() / tokens for p, _ in held
        ],
        "the number of experts is missing: an even load should give 1.": [x / EXPERTS for x in right],
    }


def _gradient(seen: Seen, held: list[tuple[Tensor, Tensor]]) -> str | None:
    tokens = sum(len(p) for p, _ in held)
    slope = EXPERTS * frequency(torch.cat([e for _, e in held])) / tokens
    for rank, (_, grad) in enumerate(seen.values):
        if grad is None:
            return f"rank {rank}: right value, but no gradient reaches probs: the router would learn nothing from it."
    wanted = [slope.expand_as(probs) for probs, _ in held]
    return wrong_value([grad for _, grad in seen.values], wanted, "right value; the gradient of probs", {})


def praise(seen: Seen) -> str:
    total = float(sum(share for share, _ in seen.values))
    return f"the shares add up to {total:.3f}, as in one process with all tokens; rank 0 sent {seen.sent(0):.0f} bytes (counted)."


def reference(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    counts = torch.bincount(expert.flatten(), minlength=probs.shape[1])
    everyone = comm.all_reduce(torch.cat([counts, torch.tensor([len(probs)])]), axis)
    f = everyone[:-1] / everyone[:-1].sum()
    return probs.shape[1] * (f * probs.sum(0)).sum() / everyone[-1]


def _own(probs: Tensor, expert: Tensor) -> Tensor:
    return probs.shape[1] * (frequency(expert) * probs.mean(0)).sum()


def _own_tokens(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return _own(probs, expert)


def _mean_of_ranks(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return _own(probs, expert) / axis.size


def _all(counts: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(counts.double(), axis)


def _f(expert: Tensor, axis: Any) -> Tensor:
    counts = _all(torch.bincount(expert.flatten(), minlength=EXPERTS), axis)
    return counts / counts.sum()


def _tokens(probs: Tensor, axis: Any) -> Tensor:
    return _all(torch.tensor([len(probs)]), axis)[0]


def _f_of_this_rank(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return EXPERTS * (frequency(expert) * probs.sum(0)).sum() / _tokens(probs, axis)


def _p_of_this_rank(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return EXPERTS * (_f(expert, axis) * probs.mean(0)).sum()


def _p_by_ranks(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return _p_of_this_rank(probs, expert, axis) / axis.size


def _soft_f(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    f = comm.all_reduce(probs.detach().sum(0), axis) / _tokens(probs, axis)
    return EXPERTS * (f * probs.sum(0)).sum() / _tokens(probs, axis)


def _first_choices(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return EXPERTS * (_f(expert[:, :1], axis) * probs.sum(0)).sum() / _tokens(probs, axis)


def _without_experts(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return reference(probs, expert, axis) / probs.shape[1]


def _whole_on_every_rank(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(reference(probs, expert, axis).detach(), axis)


def _no_gradient(probs: Tensor, expert: Tensor, axis: Any) -> Tensor:
    return reference(probs.detach(), expert, axis)


EXERCISE = Exercise(
    name="balance-loss",
    lesson=12,
    task="Return this rank's share of E * sum(f * P) over the tokens of all ranks: f by copies sent, P by mean probability.",
    takes=("probs", "expert", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("own tokens", _own_tokens, "the loss of its own tokens alone: a product"),
        Wrong("mean of ranks", _mean_of_ranks, "its own tokens alone, divided by"),
        Wrong("f of this rank", _f_of_this_rank, "f was counted over this rank's tokens"),
        Wrong("P of this rank", _p_of_this_rank, "its share counts them among all tokens"),
        Wrong("P by ranks", _p_by_ranks, "then over the ranks: tokens on a rank with few"),
        Wrong("f from probabilities", _soft_f, "f was taken from the probabilities"),
        Wrong("first choices", _first_choices, "f counts first choices only"),
        Wrong("without E", _without_experts, "the number of experts is missing"),
        Wrong("whole on every rank", _whole_on_every_rank, "every rank returned the whole loss"),
        Wrong("no gradient", _no_gradient, "no gradient reaches probs"),
    ),
    hints=(
        "One expert is busy on rank 0, another on rank 1. Each rank alone looks unbalanced; together they are not. Which of f and "
        "P must be known over all ranks before they are multiplied?",
        "f is a count: it has no gradient, so an all-reduce of plain data is enough. P may stay this rank's part of a sum.",
        "P is the mean over *all* tokens: sum this rank's probabilities, and divide by the number of tokens on all ranks.",
    ),
    praise=praise,
    cases=cases(ranks=(2, 4)),
)

"""Lesson 3: average gradients over ranks that hold different numbers of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong, cases
from course.exercises.findings import no_tensor, wrong_value
from minipar import comm

SIZE = 24  # elements of the gradient
TOKENS = {2: (30, 10), 4: (60, 20, 50, 10)}  # by world size and rank


def inputs(case: Case) -> list[Tensor]:
    """On each rank, the gradient of the mean loss over its own tokens: ``[SIZE]`` float64."""
    generator = torch.Generator().manual_seed(case.seed)
    return list(torch.randn(case.ranks, SIZE, generator=generator, dtype=torch.float64))


def trial(answer: Any, case: Case) -> Any:
    axis = comm.world()
    return answer(inputs(case)[axis.rank], TOKENS[axis.size][axis.rank], axis)


def judge(seen: Seen) -> str | None:
    grads, tokens = inputs(seen.case), TOKENS[seen.case.ranks]
    expected = sum((g * t for g, t in zip(grads, tokens, strict=True)), torch.zeros(SIZE)) / sum(tokens)
    return (
        no_tensor(seen.values, grads[0])
        or wrong_value(seen.values, expected, "the averaged gradient", _suspects(grads, tokens, expected))
        or _bytes(seen)
    )


def _suspects(grads: list[Tensor], tokens: tuple[int, ...], expected: Tensor) -> dict[str, list[Tensor]]:
    n, whole = len(grads), expected * sum(tokens)
    same = [torch.stack(grads).mean(0)] * n
    weights = ":".join(str(t // min(tokens)) for t in tokens)
    return {
        f"mean of means: off by the shard weights {weights}. A token of a small shard counts for more than one of a large.": same,
        "its gradient is the sum of the ranks' means: it is divided by nothing.": [same[0] * n] * n,
        "its gradient is the sum over all tokens, not their mean: the weights are right, the division is missing.": [whole] * n,
        f"its gradient is weighted right, then divided by {n} ranks instead of by the tokens.": [whole / n] * n,
        "its gradient is divided by this rank's own tokens: the ranks no longer agree.": [whole / t for t in tokens],
        "its gradient is still its own: nothing came from the other ranks.": grads,
    }


def _bytes(seen: Seen) -> str | None:
    """An all-reduce of the gradient and of one number is enough, in one call or two."""
    n = seen.case.ranks
    enough = comm.wire_bytes("all_reduce", (SIZE + 1) * 8, n)
    sent = [seen.sent(rank) for rank in range(n)]
    worst = sent.index(max(sent))
    if sent[worst] > enough * (1 + 1e-9):
        names = " and ".join(dict.fromkeys(s.name for s in seen.calls(worst)))
        return f"right average; rank {worst} sent {sent[worst] / enough:.1f}x what it takes (counted), by {names}."
    return None


def praise(seen: Seen) -> str:
    calls = len(seen.calls(0))
    return f"the mean over all tokens, on every rank; {seen.sent(0):.0f} bytes sent by each, in {calls} calls (counted)."


def reference(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    total = comm.all_reduce(torch.tensor([float(tokens)], dtype=grad.dtype), axis)
    return comm.all_reduce(grad * tokens, axis) / total


def _mean_of_means(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    return comm.all_reduce(grad, axis) / axis.size


def _sum_of_means(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    return comm.all_reduce(grad, axis)


def _no_division(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    return comm.all_reduce(grad * tokens, axis)


def _by_ranks(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    return comm.all_reduce(grad * tokens, axis) / axis.size


def _by_own_tokens(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    return comm.all_reduce(grad * tokens, axis) / tokens


def _all_gathered(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    """Right, but every rank receives every gradient."""
    counts = comm.all_gather(torch.tensor([float(tokens)], dtype=grad.dtype), axis)
    grads = comm.all_gather(grad, axis).view(axis.size, -1)
    return (grads * counts[:, None]).sum(0) / counts.sum()


def _alone(grad: Tensor, tokens: int, axis: Any) -> Tensor:
    return grad


EXERCISE = Exercise(
    name="unequal-shards",
    lesson=3,
    task="Each rank holds the gradient of the mean loss over its own tokens. Return the gradient of the mean over all tokens.",
    takes=("grad", "tokens", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("mean of means", _mean_of_means, "mean of means: off by the shard weights 3:1"),
        Wrong("sum of means", _sum_of_means, "its gradient is the sum of the ranks' means"),
        Wrong("no division", _no_division, "the weights are right, the division is missing"),
        Wrong("divided by ranks", _by_ranks, "then divided by 2 ranks instead of by the tokens"),
        Wrong("divided by own tokens", _by_own_tokens, "divided by this rank's own tokens"),
        Wrong("all gathered", _all_gathered, "right average; rank 0 sent 2.0x what it takes"),
        Wrong("alone", _alone, "its gradient is still its own"),
    ),
    hints=(
        "Three tokens with gradients 1, 1, 1 on one rank, one token with gradient 5 on another: the mean over all four is 2. "
        "What do the means 1 and 5 give?",
        "A mean is a sum over a count. Undo the rank's own division first, and only divide again when everything is added up.",
        "The count of all tokens is itself a sum across ranks.",
    ),
    praise=praise,
    cases=cases(ranks=(2, 4)),
)

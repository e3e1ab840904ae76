"""Lesson 0: one number on each rank, their sum on all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong
from course.exercises.findings import changed_input, no_tensor, wrong_value
from minipar import comm


def inputs(case: Case) -> list[Tensor]:
    """One float64 number per rank: ``[1]`` each."""
    generator = torch.Generator().manual_seed(case.seed)
    return list(torch.rand(case.ranks, 1, generator=generator, dtype=torch.float64) + 1)


def trial(answer: Any, case: Case) -> tuple[Any, bool]:
    axis = comm.world()
    mine = inputs(case)[axis.rank]
    x = mine.clone()
    value = answer(x, axis)
    return value, not torch.equal(x, mine)


def judge(seen: Seen) -> str | None:
    xs = inputs(seen.case)
    values = [value for value, _ in seen.values]
    total = torch.stack(xs).sum(0)
    return (
        no_tensor(values, xs[0])
        or wrong_value(values, total, "the sum", _suspects(xs, total))
        or changed_input(seen, [changed for _, changed in seen.values])
        or _calls(seen)
    )


def _suspects(xs: list[Tensor], total: Tensor) -> dict[str, list[Tensor]]:
    n = len(xs)
    return {
        f"its value is still its own {xs[0].item():.3f}: it heard nothing from the other ranks.": xs,
        f"its value is the mean, 1/{n} of the sum.": [total / n] * n,
        f"its value is {n} times the sum: what was summed already was summed again.": [total * n] * n,
        "its value is the largest of all, not their sum.": [torch.stack(xs).amax(0)] * n,
    }


def _calls(seen: Seen) -> str | None:
    counts = [len(seen.calls(rank)) for rank in range(seen.case.ranks)]
    if max(counts) == 0:
        return "the sum is right, but no call of minipar.comm was seen: use comm, which counts what is sent."
    if max(counts) > 1:
        busiest = counts.index(max(counts))
        names = ", ".join(dict.fromkeys(s.name for s in seen.calls(busiest)))
        return f"right sum; rank {busiest} made {counts[busiest]} calls ({names}) where one collective does it (counted)."
    return None


def praise(seen: Seen) -> str:
    return f"the sum is on all {seen.case.ranks} ranks, in one {seen.calls(0)[0].name} (counted)."


def reference(x: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(x, axis)


def _alone(x: Tensor, axis: Any) -> Tensor:
    return x.clone()


def _one_stays_away(x: Tensor, axis: Any) -> Tensor:
    if axis.rank != 2:
        x = comm.all_reduce(x, axis)
    return x


def _mean(x: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(x, axis) / axis.size


def _largest(x: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(x, axis, op="max")


def _twice(x: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(comm.all_reduce(x, axis), axis)


def _in_place(x: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce_(x, axis)


def _by_messages(x: Tensor, axis: Any) -> Tensor:
    """Everyone sends to everyone: right, and far too many messages."""
    others = [r for r in range(axis.size) if r != axis.rank]
    got = comm.exchange([(x, r) for r in others], [(torch.empty_like(x), r) for r in others], axis)
    return x + sum(got)


def _forgets_to_return(x: Tensor, axis: Any) -> None:
    comm.all_reduce(x, axis)


EXERCISE = Exercise(
    name="sum-across-ranks",
    lesson=0,
    task="Every rank holds a number x. Return the sum of all of them, on every rank, with one collective.",
    takes=("x", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("no communication", _alone, "rank 0: its value is still its own"),
        Wrong("one rank stays away", _one_stays_away, "rank 2 never came to call all_reduce"),
        Wrong("mean", _mean, "its value is the mean, 1/4 of the sum"),
        Wrong("largest", _largest, "its value is the largest of all"),
        Wrong("summed twice", _twice, "its value is 4 times the sum"),
        Wrong("in place", _in_place, "rank 0: your function overwrote its input x"),
        Wrong("many messages", _by_messages, "right sum; rank 0 made 6 calls (send, recv) where one collective does it"),
        Wrong("no return", _forgets_to_return, "rank 0 returned None"),
    ),
    hints=(
        "A collective is a call that every rank makes. Which ranks make it in your function?",
        "`comm.all_reduce(x, axis)` returns a new tensor; it leaves `x` as it was.",
    ),
    praise=praise,
)

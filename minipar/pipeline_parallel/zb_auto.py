"""zb-auto: find a split-backward schedule for given costs under a memory limit.

A row is two numbers: how many forwards it starts with, and how many weight gradients it may owe.

    ahead 3, owed 1     F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 ...  then all that is owed

Ahead: rank r needs enough forwards to stay busy until the first gradient has come back from the last rank,
``ahead * F >= (time down and up again)``. Owed: at the end the last input gradients travel up to rank 0, each rank stops hearing
anything earlier than the one before it by F + I + two messages, and needs that much more to do, ``owed * W >= r (F + I + 2 comm)``.
Memory caps both. What is best between these bounds depends on rounding, so a handful of neighbours is simulated.

Same aim as the automatic schedule of Qi et al. 2023, section 3, which decides action by action; here the plan has a closed form.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product
from math import ceil, floor
from typing import NamedTuple

from minipar.pipeline_parallel.action import Action
from minipar.pipeline_parallel.schedule import Schedule, one_stage_each
from minipar.pipeline_parallel.simulate import Cost, action_times, per_stage

KEPT = 32 / 74  # Qi et al. 2023, table 1: after its input gradient a layer keeps 32h of 34h + 5as bytes a token; here as = 8h
ROUNDINGS = (0.0, 0.5, 0.999)  # of the forwards that run ahead
PATIENCES = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25)  # of the weight gradients owed, as a share of the bound


class Plan(NamedTuple):
    """One number a rank each."""

    ahead: tuple[int, ...]  # forwards before the first input gradient
    owed: tuple[int, ...]  # weight gradients put off


class Costs(NamedTuple):
    forward: list[float]  # by stage
    input_grad: list[float]
    weight_grad: list[float]
    comm: list[float]  # between stage s and s + 1


def zb_auto(
    ranks: int,
    microbatches: int,
    memory: float | None = None,
    forward: Cost = 1,
    input_grad: Cost = 1,
    weight_grad: Cost = 1,
    comm: Cost = 0,
    kept: float = KEPT,
) -> Schedule:
    """The split-backward schedule with the smallest bubble that holds at most ``memory`` microbatches' activations a rank.

    memory: in units of what one microbatch leaves on one rank; ``ranks`` if left out, as in 1F1B; ``math.inf`` is no limit.
    forward, input_grad, weight_grad, comm: as for ``Schedule.simulate``.
    kept: the share of these activations that must stay between I and W. Of equally good schedules the one that also fits with
    all of it kept is taken. Raises ValueError if not even one microbatch fits.
    """
    memory = ranks if memory is None else memory
    if not memory >= 1:
        raise ValueError(f"memory={memory}: a rank must be able to hold the activations of at least one microbatch")
    memory = min(memory, 2 * microbatches + ranks)  # nobody can use more
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept}: the share of the activations that a weight gradient needs is above 0 and at most 1")
    costs = Costs(
        per_stage(forward, ranks, "forward"),
        per_stage(input_grad, ranks, "input_grad"),
        per_stage(weight_grad, ranks, "weight_grad"),
        per_stage(comm, ranks - 1, "comm"),
    )
    best, best_span = None, float("inf")
    for plan in dict.fromkeys(_plans(ranks, microbatches, memory, costs, kept)):
        schedule = _schedule(plan, microbatches)
        span = _span(schedule, costs)
        if span < best_span * (1 - 1e-9):
            best, best_span = schedule, span
    assert best is not None
    return best


def _plans(ranks: int, microbatches: int, memory: float, costs: Costs, kept: float) -> Iterator[Plan]:
    """Neighbours of the two bounds; first those that fit even if nothing is freed before W."""
    for share, rounding, patience in product(dict.fromkeys((1.0, kept)), ROUNDINGS, PATIENCES):
        ahead = _ahead(ranks, microbatches, memory, costs, rounding)
        room = [floor((memory - a) / share + 1e-9) for a in ahead]
        wanted = [ceil(patience * o) for o in _owed(ranks, costs)]
        yield Plan(ahead, tuple(max(0, min(w, r, microbatches)) for w, r in zip(wanted, room, strict=True)))


def _ahead(ranks: int, microbatches: int, memory: float, costs: Costs, rounding: float) -> tuple[int, ...]:
    """Forwards until the first gradient is back; at least one more than the next rank while memory allows."""
    counts = []
    for rank in range(ranks):
        after = slice(rank + 1, ranks)
        away = sum(costs.forward[after]) + sum(costs.input_grad[after]) + 2 * sum(costs.comm[rank:])
        useful = 1 + floor(away / costs.forward[rank] + rounding) if costs.forward[rank] else microbatches
        counts.append(max(1, min(max(useful, ranks - rank), floor(memory) - rank, microbatches)))
    return tuple(counts)


def _owed(ranks: int, costs: Costs) -> list[float]:
    """Weight gradients that fill the time after a rank's last input gradient, when rank 0 owes none."""
    gaps = [f + i + 2 * c for f, i, c in zip(costs.forward, costs.input_grad, costs.comm, strict=False)]
    return [gap / w if w else 0.0 for gap, w in zip(accumulate(gaps, initial=0.0), costs.weight_grad, strict=True)]


def _schedule(plan: Plan, microbatches: int) -> Schedule:
    rows = [_row(rank, ahead, owed, microbatches) for rank, (ahead, owed) in enumerate(zip(*plan, strict=True))]
    return Schedule(rows, microbatches, one_stage_each(len(rows)), "zb-auto")


def _row(rank: int, ahead: int, owed: int, microbatches: int) -> list[Action]:
    row = [Action("F", rank, k) for k in range(ahead)]
    for k in range(microbatches):
        row.append(Action("I", rank, k))
        if k >= owed:
            row.append(Action("W", rank, k - owed))
        if k + ahead < microbatches:
            row.append(Action("F", rank, k + ahead))
    return row + [Action("W", rank, k) for k in range(microbatches - owed, microbatches)]


def _span(schedule: Schedule, costs: Costs) -> float:
    times = action_times(schedule, *costs)
    return max(ends[-1] - starts[0] for starts, ends in zip(*times, strict=True))

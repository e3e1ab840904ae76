"""Lesson 9: layers of unequal cost placed on stages so that the slowest stage is nearly as fast as it can be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from course.exercises.exercise import Case, Exercise, Seen, Wrong, cases
from minipar.pipeline_parallel import partition

SLACK = 1.05  # the slowest stage may cost this many times the best cut's
BAR = 30  # characters of the longest bar


class Cut(NamedTuple):
    """The setting: how many layers, on how many stages."""

    layers: int
    stages: int

    def __str__(self) -> str:
        return f"{self.layers} layers on {self.stages} stages"


def costs(case: Case) -> list[float]:
    """Layers of cost 1 to 3, and a head at the end that costs as much as several."""
    draw = random.Random(case.seed)
    return [float(draw.randint(1, 3)) for _ in range(case.setting.layers - 1)] + [6.0]


def trial(answer: Any, case: Case) -> Any:
    return answer(costs(case), case.setting.stages)


def judge(seen: Seen) -> str | None:
    sizes, cut = seen.values[0], seen.case.setting
    return _no_cut(sizes, cut) or _slow(list(sizes), seen.case)


def _no_cut(sizes: Any, cut: Cut) -> str | None:
    """An answer that is no list of layers per stage."""
    if not isinstance(sizes, list | tuple) or not all(isinstance(n, int) for n in sizes):
        return f"your function returned {type(sizes).__name__}; write a list of whole numbers, how many layers each stage gets."
    if len(sizes) != cut.stages:
        return f"these are {len(sizes)} numbers for {cut.stages} stages: one number for each stage."
    if min(sizes) < 1:
        return f"stage {list(sizes).index(min(sizes))} gets no layer: it would only pass on what it receives."
    if sum(sizes) != cut.layers:
        return f"your stages hold {sum(sizes)} layers in all, and the model has {cut.layers}."
    return None


def _slow(sizes: list[int], case: Case) -> str | None:
    """The slowest stage, where it is too slow, with a picture of all of them."""
    each, best = by_stage(sizes, costs(case)), slowest(case)
    if max(each) <= best * SLACK:
        return None
    stage = each.index(max(each))
    first = sum(sizes[:stage])
    layers = f"layer {first}" if sizes[stage] == 1 else f"layers {first} to {first + sizes[stage] - 1}"
    head = f"stage {stage} ({layers}) costs {max(each):g}, and all wait for it; the best cut's slowest costs {best:g} (predicted)."
    lines = [f"stage {s}  {'█' * round(BAR * cost / max(each))} {cost:g}" for s, cost in enumerate(each)]
    lines[stage] += "  ← slowest"
    return "\n".join([head, *lines])


def by_stage(sizes: Sequence[int], costs: Sequence[float]) -> list[float]:
    ends = list(accumulate(sizes))
    return [sum(costs[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def slowest(case: Case) -> float:
    """What the slowest stage of the best cut costs."""
    return max(by_stage(partition(costs(case), case.setting.stages), costs(case)))


def praise(seen: Seen) -> str:
    each = by_stage(seen.values[0], costs(seen.case))
    return f"the slowest stage costs {max(each):g}, the best possible cut's {slowest(seen.case):g} (counted)."


def reference(costs: list[float], stages: int) -> list[int]:
    return partition(costs, stages)


def _equal_numbers(costs: list[float], stages: int) -> list[int]:
    each, over = divmod(len(costs), stages)
    return [each + (stage < over) for stage in range(stages)]


def _up_to_the_mean(costs: list[float], stages: int) -> list[int]:
    """Fill each stage as long as it stays within its share of the cost; what is left goes to the last."""
    sizes, held = [0] * stages, 0.0
    stage, share = 0, sum(costs) / stages
    for cost in costs:
        if held + cost > share and stage < stages - 1:
            stage, held = stage + 1, 0.0
        sizes[stage] += 1
        held += cost
    return sizes


def _one_lost(costs: list[float], stages: int) -> list[int]:
    sizes = partition(costs, stages)
    return [sizes[0] - 1, *sizes[1:]]


def _stage_of_each(costs: list[float], stages: int) -> list[int]:
    return [layer * stages // len(costs) for layer in range(len(costs))]


def _one_empty(costs: list[float], stages: int) -> list[int]:
    return [0, *partition(costs, stages - 1)]


def _forgets_to_return(costs: list[float], stages: int) -> None:
    partition(costs, stages)


EXERCISE = Exercise(
    name="place-layers",
    lesson=9,
    task="Place layers on stages: how many consecutive layers each stage gets, the slowest stage within 5 % of the best possible.",
    takes=("costs", "stages"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("equal numbers", _equal_numbers, "stage 3 (layers 9 to 11) costs"),
        Wrong("filled up to the mean", _up_to_the_mean, "stage 3 (layers 8 to 11) costs"),
        Wrong("one layer lost", _one_lost, "your stages hold 11 layers in all"),
        Wrong("the stage of each layer", _stage_of_each, "these are 12 numbers for 4 stages"),
        Wrong("one stage empty", _one_empty, "stage 0 gets no layer"),
        Wrong("no return", _forgets_to_return, "your function returned NoneType"),
    ),
    hints=(
        "Suppose no stage may cost more than a limit. Filling the stages from the left tells whether that limit can be kept.",
        "Try limits: the sums of consecutive layers are all the costs that a stage can have. The smallest that works is the best.",
        "Filling each stage to the limit may leave the last ones empty: hold back one layer for each stage still to come.",
    ),
    praise=praise,
    cases=cases(ranks=(1,), settings=(Cut(12, 4), Cut(17, 5))),
)

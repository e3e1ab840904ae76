"""What a schedule would do: each action starts as soon as its rank is free and what it needs has arrived.

``start of an action = max(end of the rank's action before it, end of what it needs + comm if that is on another rank)``

Communication delays only the action that waits for it: a rank computes while it sends and receives.
"""

from __future__ import annotations

import gc
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from minipar.pipeline_parallel import rules
from minipar.pipeline_parallel.action import Action, needs
from minipar.trace import COMPUTE, Span, Timeline

if TYPE_CHECKING:
    from minipar.pipeline_parallel.schedule import Schedule

Cost = float | Sequence[float]  # seconds of one action: the same for all stages, or one for each
_PHASE = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}


class Times(NamedTuple):
    """The start and end of every action: ``starts[rank][slot]``, ``ends[rank][slot]``."""

    starts: list[list[float]]
    ends: list[list[float]]


def simulate(
    schedule: Schedule,
    forward: Cost = 1,
    input_grad: Cost = 1,
    weight_grad: Cost = 1,
    comm: Cost = 0,
    overrides: Mapping[Action, float] | None = None,
) -> Timeline:
    """The predicted ``Timeline`` of a schedule, with its critical path.

    forward, input_grad, weight_grad: cost of an F, I, W on one chunk, one number or one per stage; a B costs I + W.
    comm: cost of a message between ranks, one number or one per pair of neighbour stages (``comm[s]``: between s and s + 1).
    overrides: the cost of single actions, instead.
    Raises ValueError for a negative or NaN cost, or one of an action that there is not; ``ScheduleError`` if the schedule cannot
    run to its end.
    """
    with no_collection():
        times = action_times(schedule, forward, input_grad, weight_grad, comm, overrides)
        spans = [span for rank, row in enumerate(schedule.rows) if row for span in _spans(rank, row, times)]
    return Timeline(spans, schedule.ranks, "predicted", _critical_path(schedule, times, spans))


def _spans(rank: int, row: list[Action], times: Times) -> Iterator[Span]:
    kinds, stages, microbatches = zip(*row, strict=True)
    columns = (repeat(rank), repeat(COMPUTE), kinds, times.starts[rank], times.ends[rank])
    no_comm = (repeat(""), repeat(0), repeat(()))
    return map(Span._make, zip(*columns, *no_comm, map(_PHASE.__getitem__, kinds), stages, microbatches, strict=False))


@contextmanager
def no_collection() -> Iterator[None]:
    """Making many small objects at once sets off the garbage collector again and again, in vain: it halves the speed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def action_times(
    schedule: Schedule,
    forward: Cost = 1,
    input_grad: Cost = 1,
    weight_grad: Cost = 1,
    comm: Cost = 0,
    overrides: Mapping[Action, float] | None = None,
) -> Times:
    """When every action starts and ends. Arguments as for ``simulate``."""
    stages, placement = schedule.stages, schedule.placement
    cost = {
        "F": per_stage(forward, stages, "forward"),
        "I": per_stage(input_grad, stages, "input_grad"),
        "W": per_stage(weight_grad, stages, "weight_grad"),
    }
    cost["B"] = [i + w for i, w in zip(cost["I"], cost["W"], strict=True)]
    hop = [wire if placement[s] != placement[s + 1] else 0.0 for s, wire in enumerate(per_stage(comm, max(stages - 1, 0), "comm"))]
    special = {action: _legal(seconds, f"overrides[{action}]") for action, seconds in (overrides or {}).items()}
    rules.check_rows(schedule)
    unknown = special.keys() - {action for row in schedule.rows for action in row} if special else ()
    if unknown:
        raise ValueError(f"overrides[{min(unknown)}]: this schedule has no such action")
    return _run(schedule, cost, hop, special)


def _run(schedule: Schedule, cost: dict[str, list[float]], hop: list[float], special: Mapping[Action, float]) -> Times:
    """Every rank is a coroutine that does its row and yields what it waits for; whoever makes that wakes it."""
    done: list[float | None] = [None] * (2 * schedule.stages * schedule.microbatches)  # ends of forwards, then of backwards
    asleep: dict[int, int] = {}  # place in ``done`` -> the rank that waits for it
    awake = list(range(schedule.ranks))
    times = Times([[] for _ in schedule.rows], [[] for _ in schedule.rows])
    ranks = [_rank(schedule, rank, cost, hop, special, done, asleep, awake, times) for rank in range(schedule.ranks)]
    while awake:
        rank = awake.pop()
        needed = next(ranks[rank], None)
        if needed is not None:
            asleep[needed] = rank
    if asleep:
        schedule.validate()  # says who waits for whom
    return times


def _rank(
    schedule: Schedule,
    rank: int,
    cost: dict[str, list[float]],
    hop: list[float],
    special: Mapping[Action, float],
    done: list[float | None],
    asleep: dict[int, int],
    awake: list[int],
    times: Times,
) -> Iterator[int]:
    """Run one rank's row; yields the place in ``done`` that it waits for. Written flat: it runs once for each action."""
    m, last, size = schedule.microbatches, schedule.stages - 1, len(done) // 2
    start, finish = times.starts[rank].append, times.ends[rank].append
    free = 0.0
    for action in schedule.rows[rank]:
        kind, stage, microbatch = action
        place = stage * m + microbatch
        needed = -1
        if kind == "F":
            if stage:
                needed, wire = place - m, hop[stage - 1]
        else:
            place += size
            needed, wire = (place, 0.0) if kind == "W" else (place + m, hop[stage]) if stage < last else (place - size, 0.0)
        if needed >= 0:
            while (end := done[needed]) is None:
                yield needed
            if end + wire > free:
                free = end + wire
        start(free)
        free += special[action] if special and action in special else cost[kind][stage]
        finish(free)
        if kind != "W":
            done[place] = free
            if asleep and place in asleep:
                awake.append(asleep.pop(place))


def _critical_path(schedule: Schedule, times: Times, spans: list[Span]) -> list[Span]:
    """The chain of actions that sets the makespan: from the last end back, each time to what its start waited for."""
    first = [0]
    for row in schedule.rows:
        first.append(first[-1] + len(row))
    rank = max(range(schedule.ranks), key=lambda r: times.ends[r][-1] if times.ends[r] else 0.0)
    slot = len(schedule.rows[rank]) - 1
    path: list[Span] = []
    while slot >= 0:
        path.append(spans[first[rank] + slot])
        rank, slot = _cause(schedule, times, rank, slot)
    return path[::-1]


def _cause(schedule: Schedule, times: Times, rank: int, slot: int) -> tuple[int, int]:
    """The ``(rank, slot)`` whose end set the start of an action: the rank's slot before it, or one on another rank."""
    start = times.starts[rank][slot]
    if slot and times.ends[rank][slot - 1] == start:
        return rank, slot - 1
    action = schedule.rows[rank][slot]
    for what, stage in needs(action, schedule.stages):
        home = schedule.placement[stage]
        wanted = {Action(kind, stage, action.microbatch) for kind in ("F" if what == "F" else "BI")}
        if home != rank:
            return home, next(
                s for s in range(bisect_right(times.ends[home], start) - 1, -1, -1) if schedule.rows[home][s] in wanted
            )
    return rank, slot - 1


def per_stage(cost: Cost, stages: int, name: str) -> list[float]:
    """A cost as a list with one number per stage. Raises ValueError for a negative or NaN cost, or a list of another length."""
    costs = [cost] * stages if isinstance(cost, (int, float)) else list(cost)
    if len(costs) != stages:
        raise ValueError(f"{name}: give one number, or one for each of the {stages} stages; these are {len(costs)}")
    return [_legal(c, f"{name} of stage {stage}") for stage, c in enumerate(costs)]


def _legal(cost: float, what: str) -> float:
    if not (math.isfinite(cost) and cost >= 0):
        raise ValueError(f"{what} is {cost}: a cost is a finite number, zero or more")
    return float(cost)

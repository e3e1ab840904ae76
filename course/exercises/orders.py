"""What the exercises about pipeline schedules share: a row of actions per rank, read, checked, and timed with costs of its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from course.exercises.exercise import Case, Seen
from minipar.pipeline_parallel import Action, Schedule, ScheduleError
from minipar.trace import Span, Timeline

Write = Callable[[int, int, int], Any]  # (rank, ranks, microbatches) -> the row of that rank


class Pipe(NamedTuple):
    """The setting in which an order is tried."""

    ranks: int
    microbatches: int

    def __str__(self) -> str:
        return f"a pipeline of {self.ranks} ranks, {self.microbatches} microbatches"


def trial(answer: Write, case: Case) -> list[Any]:
    """The rows that the answer writes, one per rank of the pipeline."""
    pipe = case.setting
    return [answer(rank, pipe.ranks, pipe.microbatches) for rank in range(pipe.ranks)]


def cost(case: Case) -> float:
    """What a forward costs in this case, 1 to 2; a backward costs twice as much."""
    return round(1 + random.Random(case.seed).random(), 2) if case.seed else 1.0


def read(seen: Seen) -> Schedule | str:
    """The schedule that the answer wrote, legal and complete; or the sentence that says what it is not."""
    rows = seen.values[0]
    for rank, row in enumerate(rows):
        if row is None:
            return f"rank {rank} got None for a row: does every path of your function end in a return?"
        if not isinstance(row, str | list | tuple) or not all(isinstance(word, str) for word in row):
            return f"rank {rank} got {type(row).__name__} for a row: write a list of words, such as ['F0', 'B0']."
    lines = [row if isinstance(row, str) else " ".join(row) for row in rows]
    empty = [rank for rank, line in enumerate(lines) if not line.strip()]
    if empty:
        return f"the row of rank {empty[0]} is empty."
    try:
        schedule = Schedule.parse("\n".join(lines), seen.case.setting.microbatches)
        schedule.validate()
    except ScheduleError as error:
        return f"{error}."
    return schedule


def timed(schedule: Schedule, case: Case) -> Timeline:
    forward = cost(case)
    return schedule.simulate(forward, input_grad=forward, weight_grad=forward)


def too_slow(timeline: Timeline, case: Case) -> str | None:
    """An order that idles more than ``(p-1)(F+B)`` on a rank, with its longest wait."""
    pipe = case.setting
    best = (pipe.microbatches + pipe.ranks - 1) * 3 * cost(case)
    if timeline.makespan <= best * (1 + 1e-9):
        return None
    seconds, before = max((_longest_wait(timeline.of(rank)) for rank in range(pipe.ranks)), key=lambda wait: wait[0])
    return (
        f"legal and complete, but it takes {timeline.makespan:g} slots where (m+p-1)(F+B) = {best:g} is enough: "
        f"rank {before.rank} stands idle for {seconds:g} before {before.name}{before.microbatch} (predicted)."
    )


def _longest_wait(row: Sequence[Span]) -> tuple[float, Span]:
    ends = [0.0, *(span.end for span in row)]
    return max(((span.start - end, span) for end, span in zip(ends, row, strict=False)), key=lambda wait: wait[0])


def words(kind: str, microbatches: Sequence[int]) -> list[str]:
    """``words("F", range(3))`` is F0 F1 F2."""
    return [f"{kind}{k}" for k in microbatches]


def name(action: Action) -> str:
    return f"{action.kind}{action.microbatch}"

"""An answer that raised, hung, never ended or killed its rank: the story of ``course.ranks``, told for the exercise."""

from __future__ import annotations

import re

from course.exercises.exercise import Exercise
from course.ranks import RankDied, RankError, RanksInterrupted, RanksStopped, RanksStuck, RanksTimeout

_CELL = re.compile(r"Cell In ?\[\d+\]")  # its number says nothing to a learner, and changes with every run

Trouble = (RankError, RankDied, RanksStuck, RanksTimeout)


def told(error: BaseException, exercise: Exercise) -> str:
    """The first line says what happened, the rest where. What became of the ranks' variables matters to nobody here."""
    lines = [line for line in getattr(error, "story", ()) if not line.startswith("other ranks")]
    if isinstance(error, RanksTimeout):
        lines = _of_one_rank(lines)
    headline = _headline(error, exercise) + (", here:" if isinstance(error, RankError) and lines else "")
    return _CELL.sub("your cell", "\n".join((headline, *lines)))


def interrupted(error: RanksInterrupted, exercise: Exercise) -> RanksInterrupted:
    """An interrupt that ends a check, told of the learner's function: ``check``'s own names and ranks say nothing to anybody."""
    where = tuple(_CELL.sub("your cell", line) for line in error.story)
    last = "Nothing was checked, and your own ranks are as they were."
    return RanksInterrupted(RanksStopped(f"the check of {exercise.name} was interrupted", (*where, last)))


def _of_one_rank(lines: list[str]) -> list[str]:
    """The part of the first rank: where one loops, the others do."""
    starts = [i for i, line in enumerate(lines) if re.match(r"rank \d+ ", line)]
    return lines[: starts[1]] if len(starts) > 1 else lines


def _headline(error: BaseException, exercise: Exercise) -> str:
    if isinstance(error, RanksTimeout):
        return f"your function did not end within {exercise.seconds:g} s and was stopped. One of the ranks was here:"
    if isinstance(error, RanksStuck):
        return "the ranks wait for each other, for ever:"
    return str(getattr(error, "headline", error))

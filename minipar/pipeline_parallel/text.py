"""Schedules as text: one line per rank, ``F0 F1 B0 B1``; a microbatch behind each letter.

A rank that holds several chunks needs the stage as well: ``F0@0 F0@4`` is the forward of microbatch 0 on stages 0 and 4.
A line may start with ``rank 0:``; whatever follows a ``#`` is a comment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from minipar.pipeline_parallel.action import Action, ScheduleError

if TYPE_CHECKING:
    from minipar.pipeline_parallel.schedule import Schedule

_WORD = re.compile(r"([FBIW])(\d+)(?:@(\d+))?")
_LABEL = re.compile(r"\s*rank\s+(\d+)\s*:")


def show(schedule: Schedule) -> str:
    """The table, one line per rank: ``parse`` reads it back."""
    lines = [" ".join([f"rank {rank}:", *map(schedule.show, row)]) for rank, row in enumerate(schedule.rows)]
    return "\n".join(lines)


def parse(text: str) -> tuple[list[list[Action]], tuple[int, ...]]:
    """Read a table: the rows, and on which rank each stage lives. Says which word on which rank it cannot read."""
    lines = [line.split("#")[0] for line in text.splitlines()]
    rows: list[list[Action]] = []
    for line in filter(str.strip, lines):
        rows.append(_parse_row(len(rows), line))
    if not rows:
        raise ScheduleError("text", "an empty table: write one line per rank, such as F0 F1 B0 B1")
    return rows, _placement(rows)


def _parse_row(rank: int, line: str) -> list[Action]:
    label = _LABEL.match(line)
    if label and int(label[1]) != rank:
        raise ScheduleError("text", f"this line says rank {label[1]}; one line per rank, from rank 0 on", rank)
    words = line[label.end() :].split() if label else line.split()
    return [_parse_word(rank, slot, word) for slot, word in enumerate(words)]


def _parse_word(rank: int, slot: int, word: str) -> Action:
    found = _WORD.fullmatch(word)
    if not found:
        raise ScheduleError(
            "text", f"{word!r} is not an action: write F, B, I or W and a microbatch, such as F3, or F3@5 for stage 5", rank, slot
        )
    return Action(found[1], rank if found[3] is None else int(found[3]), int(found[2]))


def _placement(rows: list[list[Action]]) -> tuple[int, ...]:
    """The rank of each stage: where the table first uses it."""
    rank_of: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for slot, action in enumerate(row):
            home = rank_of.setdefault(action.stage, rank)
            if home != rank:
                raise ScheduleError("placement", f"{action} is of stage {action.stage}, which lives on rank {home}", rank, slot)
    stages = max(max(rank_of, default=0) + 1, len(rows))
    absent = next((stage for stage in range(stages) if stage not in rank_of), None)  # a slip of the hand may name stage 10**9
    if absent is not None:
        raise ScheduleError("missing", f"no rank does anything for stage {absent}; the last stage named is {stages - 1}")
    return tuple(rank_of[stage] for stage in range(stages))

"""The words a pipeline schedule is written in: actions, transfers, and what is said when one of them is out of place."""

from __future__ import annotations

from typing import NamedTuple

KINDS = {
    "F": "forward",
    "B": "full backward",
    "I": "input gradient (the first half of a split backward)",
    "W": "weight gradient (the second half of a split backward)",
}


class Action(NamedTuple):
    """One computation: ``kind`` (F, B, I or W) of one stage on one microbatch."""

    kind: str
    stage: int  # in range(ranks * chunks): the stages in the order in which a microbatch passes them
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}@{self.stage}"


class Transfer(NamedTuple):
    """One end of a message between two ranks: an activation (``what`` "F") or the gradient of one (``what`` "B")."""

    way: str  # "send" or "recv"
    what: str
    stage: int  # the stage that made it
    microbatch: int
    peer: int  # the rank at the other end

    def __str__(self) -> str:
        return f"{'>' if self.way == 'send' else '<'}{self.what}{self.microbatch}@{self.stage}:{self.peer}"


Instruction = Action | Transfer


class ScheduleError(ValueError):
    """A schedule that cannot run. ``rule`` is the rule it breaks; ``rank`` and ``slot`` say where (None: nowhere in particular)."""

    def __init__(self, rule: str, why: str, rank: int | None = None, slot: int | None = None) -> None:
        where = "" if rank is None else f"rank {rank}: " if slot is None else f"rank {rank}, slot {slot}: "
        super().__init__(where + why)
        self.rule, self.rank, self.slot = rule, rank, slot

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.rule, str(self), self.rank, self.slot)


def _restore(rule: str, message: str, rank: int | None, slot: int | None) -> ScheduleError:
    error = ScheduleError(rule, message)
    error.rank, error.slot = rank, slot
    return error


def needs(action: Action, stages: int) -> list[tuple[str, int]]:
    """What must be finished before ``action`` starts, for the same microbatch: ``(what, stage)``.

    ``what`` is "F", or "B" for an input gradient, whether a B or an I makes it.
    """
    kind, stage, _ = action
    if kind == "F":
        return [("F", stage - 1)] if stage else []
    if kind == "W":
        return [("B", stage)]
    own = ("F", stage)
    return [own, ("B", stage + 1)] if stage + 1 < stages else [own]


def makes(action: Action) -> str | None:
    """What ``action`` makes for others: "F" (an activation), "B" (an input gradient) or nothing (None)."""
    return {"F": "F", "B": "B", "I": "B", "W": None}[action.kind]


def consumer(action: Action, stages: int) -> int | None:
    """The stage that needs what ``action`` makes, or None."""
    if action.kind == "W":
        return None
    stage = action.stage + 1 if action.kind == "F" else action.stage - 1
    return stage if 0 <= stage < stages else None

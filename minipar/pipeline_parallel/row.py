"""Writing one rank's row by counting: forwards and backwards of a stage go through the microbatches in order."""

from __future__ import annotations

from collections import Counter

from minipar.pipeline_parallel.action import Action


class Row:
    """``row.add("F", 3)`` appends the forward of stage 3 on the next microbatch it has not done."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.count: Counter[tuple[bool, int]] = Counter()  # (is a forward, stage) -> how many so far
        self.owed: list[Action] = []  # weight gradients put off, oldest first

    def add(self, kind: str, *stages: int) -> None:
        """The next microbatch's ``kind`` on each of the stages in turn. An I owes its W."""
        for stage in stages:
            microbatch = self.count[kind == "F", stage]
            self.count[kind == "F", stage] += 1
            self.actions.append(Action(kind, stage, microbatch))
            if kind == "I":
                self.owed.append(Action("W", stage, microbatch))

    def forwards(self, stage: int) -> int:
        """How many forwards of a stage there are so far."""
        return self.count[True, stage]

    def pay(self, count: int = 1) -> None:
        """Do the oldest weight gradients that are owed."""
        self.actions += self.owed[:count]
        del self.owed[:count]

"""The pipeline schedule: one object that is edited, checked, simulated, lowered to sends and receives, drawn, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minipar.pipeline_parallel import lower, rules, simulate, text
from minipar.pipeline_parallel.action import Action, Instruction, ScheduleError

if TYPE_CHECKING:
    from minipar.pipeline_parallel.simulate import Cost
    from minipar.trace import Timeline


@dataclass
class Schedule:
    """A table of actions: ``rows[rank]`` is what that rank does, in order.

    ``placement[stage]`` is the rank a stage lives on. Stages are numbered in the order in which a microbatch passes them.
    """

    rows: list[list[Action]]
    microbatches: int
    placement: tuple[int, ...]
    name: str = "custom"

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @property
    def stages(self) -> int:
        return len(self.placement)

    def split(self, stage: int) -> set[int]:
        """The microbatches whose backward on ``stage`` is split into an input gradient and a weight gradient."""
        return {action.microbatch for action in self.rows[self.placement[stage]] if action.kind == "I" and action.stage == stage}

    def stages_of(self, rank: int) -> list[int]:
        """The stages that live on ``rank``, in order."""
        return [stage for stage, home in enumerate(self.placement) if home == rank]

    def validate(self) -> None:
        """Raise a ``ScheduleError`` that names the first broken rule and where; None if the schedule is legal."""
        rules.check(self)

    def simulate(
        self,
        forward: Cost = 1,
        input_grad: Cost = 1,
        weight_grad: Cost = 1,
        comm: Cost = 0,
        overrides: Mapping[Action, float] | None = None,
    ) -> Timeline:
        """When each action would start and end: a predicted ``Timeline``. Costs are seconds (or any unit of time) of one
        action, the same for all or one per stage; a full backward costs an input plus a weight gradient. See ``simulate``.
        """
        return simulate.simulate(self, forward, input_grad, weight_grad, comm, overrides)

    def lower(self, **costs: Any) -> list[list[Instruction]]:
        """One program per rank, with sends and receives between the actions. See ``lower``."""
        programs = lower.lower(self, **costs)
        rules.check_rendezvous(programs)
        return programs

    # Editing: each returns a new schedule and leaves this one as it is. The result may be illegal: ask ``validate``.

    def move(self, rank: int, slot: int, to: int) -> Schedule:
        """The action at ``slot`` of a rank taken out and put back so that it stands at ``to``."""

        def edit(row: list[Action]) -> None:
            row.insert(to, row.pop(slot))

        return self._edited(rank, edit, slot, to)

    def delete(self, rank: int, slot: int) -> Schedule:
        """One action left out."""

        def edit(row: list[Action]) -> None:
            del row[slot]

        return self._edited(rank, edit, slot)

    def _edited(self, rank: int, edit: Callable[[list[Action]], None], *slots: int) -> Schedule:
        if not 0 <= rank < self.ranks:
            raise ScheduleError("edit", f"there is no rank {rank}: the ranks are 0 to {self.ranks - 1}")
        for slot in slots:
            if not 0 <= slot < len(self.rows[rank]):
                raise ScheduleError("edit", f"there is no slot {slot}: this rank has slots 0 to {len(self.rows[rank]) - 1}", rank)
        row = list(self.rows[rank])
        edit(row)
        return replace(self, rows=[row if r == rank else list(old) for r, old in enumerate(self.rows)], name="custom")

    # Text

    @classmethod
    def parse(cls, table: str, microbatches: int | None = None) -> Schedule:
        """Read a table such as ``F0 F1 B0 B1``, one line per rank (several chunks on a rank: ``F0@4``, the stage behind the @).

        ``microbatches``: how many there are; left out, as many as the table names.
        """
        rows, placement = text.parse(table)
        named = max((action.microbatch for row in rows for action in row), default=0) + 1
        return cls(rows, named if microbatches is None else microbatches, placement)

    def show(self, action: Action) -> str:
        """An action as the text form writes it: the stage is left out where each rank has just one."""
        plain = self.placement == one_stage_each(self.ranks)
        return f"{action.kind}{action.microbatch}" if plain else str(action)

    def __str__(self) -> str:
        return text.show(self)


def one_stage_each(ranks: int) -> tuple[int, ...]:
    """The placement in which stage s lives on rank s."""
    return tuple(range(ranks))


def loop(ranks: int, chunks: int) -> tuple[int, ...]:
    """Stages dealt out like cards: stage s lives on rank s mod ``ranks`` (Narayanan et al. 2021, section 2.2)."""
    return tuple(stage % ranks for stage in range(ranks * chunks))


def vee(ranks: int) -> tuple[int, ...]:
    """Two stages a rank, down and up again: 0 1 2 3 3 2 1 0. The first and the last stage share rank 0 (Qi et al. 2024)."""
    return (*range(ranks), *reversed(range(ranks)))


def assemble(name: str, rows: Sequence[Sequence[Action]], microbatches: int, placement: tuple[int, ...]) -> Schedule:
    """A schedule from the rows of a generator that may count further than there are microbatches: those actions are left out.

    Microbatches do not depend on each other, so what remains is still legal.
    """
    return Schedule([[a for a in row if a.microbatch < microbatches] for row in rows], microbatches, placement, name)

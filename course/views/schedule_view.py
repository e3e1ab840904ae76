"""``ScheduleView``: a pipeline schedule whose slots can be moved, by mouse or keyboard; illegal moves are refused with the rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from course.live.painter import painter
from course.views.block import BUBBLE, Block, idle_text
from course.views.canvas_view import CanvasView
from course.views.esm import bundle
from course.views.kinds import Kind, kind_of
from course.views.labels import number
from course.views.table import Table
from course.views.timeline_png import timeline_figure
from minipar.pipeline_parallel import Schedule, ScheduleError
from minipar.trace import COMPUTE, Span, Timeline

HOW = "Drag a slot along its row, or press Enter on it, move it with the arrow keys and press Enter again. Delete leaves it out."


class ScheduleView(CanvasView):
    """A row of slots per rank, each as long as the action takes and where it would start.

    ``schedule`` is the object that will run; ``changed(schedule)`` is called after each accepted move, in the painter's thread.
    ``costs`` are those of ``Schedule.simulate``.
    """

    _esm = bundle("schedule.js")

    def __init__(self, schedule: Schedule, changed: Callable[[Schedule], None] | None = None, **costs: Any) -> None:
        super().__init__()
        self.changed = changed
        self.costs = costs
        self._undo: list[Schedule] = []
        self._said = HOW
        self._refused = False
        self.on_msg(self._hear)
        self.show(schedule)

    def show(self, schedule: Schedule, **costs: Any) -> None:
        """Draw another schedule in place, at other costs if any are given, and forget the moves so far."""
        with self._drawing:
            schedule.validate()
            self.schedule, self._undo, self.costs = schedule, [], costs or self.costs
            self._simulate()
            self.paint()

    def price(self, **costs: Any) -> None:
        """Other costs for the same schedule: the moves so far stay."""
        with self._drawing:
            if costs != self.costs:
                self.costs = costs
                self._simulate()
                self.paint()

    def move(self, rank: int, slot: int, to: int) -> bool:
        """Move an action along its rank's row, if that is legal; whether it was. What is said stands above the slots."""
        with self._drawing:
            name = self._name_of(rank, slot)
            changed = self.schedule.move(rank, slot, to)
            legal = self._take(changed, f"{name} stays", f"moved {name} from slot {slot} to slot {to}")
        if legal and self.changed is not None:
            self.changed(changed)
        return legal

    def delete(self, rank: int, slot: int) -> bool:
        """Leave an action out. No schedule can do without one of its actions: the refusal says what would be missing."""
        with self._drawing:
            name = self._name_of(rank, slot)
            return self._take(self.schedule.delete(rank, slot), f"{name} stays", f"left out {name}")

    def _take(self, changed: Schedule, refused: str, done: str) -> bool:
        """Show ``changed`` and say ``done``, if it is legal; else say ``refused``, and why. The caller holds the lock."""
        try:
            changed.validate()
        except ScheduleError as error:
            self._said, self._refused = f"{refused}: {error}", True
        else:
            self._undo.append(self.schedule)
            self.schedule = changed
            self._simulate()
            self._said, self._refused = done, False
        self.paint()
        return not self._refused

    def _name_of(self, rank: int, slot: int) -> str:
        return f"{_name(self.schedule.rows[rank][slot])} of rank {rank}"

    def undo(self) -> None:
        """Take back the last accepted move."""
        with self._drawing:
            if not self._undo:
                return
            self.schedule = self._undo.pop()
            self._simulate()
            self._said, self._refused = "took back the last move", False
            self.paint()
        if self.changed is not None:
            self.changed(self.schedule)

    def _hear(self, _: Any, content: Any, buffers: Any) -> None:
        """A message from the browser, perhaps in a thread beside the cell's: leave the work to the painter."""
        rank, slot, to = where = [content.get(key) for key in ("rank", "slot", "to")]
        if content.get("undo"):
            painter.ask(self.undo)
        elif all(isinstance(i, int) for i in where):
            painter.ask(partial(self._edit, rank, slot, to, bool(content.get("delete"))))

    def _edit(self, rank: int, slot: int, to: int, delete: bool) -> None:
        """What the browser asked for, if the schedule that is here by now has such slots."""
        with self._drawing:
            rows = self.schedule.rows
            known = 0 <= rank < len(rows) and all(0 <= i < len(rows[rank]) for i in (slot, to))
        if known and delete:
            self.delete(rank, slot)
        elif known and slot != to:
            self.move(rank, slot, to)

    def _simulate(self) -> None:
        self.timeline: Timeline = self.schedule.simulate(**self.costs)

    def is_empty(self) -> bool:
        return not any(self.schedule.rows)

    def _content(self) -> tuple[dict[str, Any], bytes]:
        kinds: list[Kind] = []
        origin = self.timeline.start
        rows = [[_slot(s, origin, kinds) for s in self.timeline.of(rank, COMPUTE)] for rank in range(self.schedule.ranks)]
        header = {
            "rows": rows,
            "kinds": [kind.state() for kind in kinds],
            "makespan": self.timeline.makespan,
            "title": f"{' · '.join(self._figures())} (predicted)",
            "held": [f"holds {held}" for held in self._held()],
            "said": self._said,
            "refused": self._refused,
            "moves": len(self._undo),
        }
        return header, b""

    def _figures(self) -> tuple[str, str]:
        t = self.timeline
        return f"makespan {number(t.makespan, 'slots')}", idle_text(BUBBLE, t.bubble, t.makespan_bubble)

    def _held(self) -> list[str]:
        """The most that each rank holds, in microbatches: a chunk is a part of what a rank holds of one."""
        chunk = self.schedule.ranks / self.schedule.stages
        return [number(peak * chunk, "") for peak in self.timeline.peak_activations]

    def figure(self) -> Figure:
        return timeline_figure([Block.of(self.timeline)], "slots")

    def table(self) -> Table:
        """Per rank: its actions in order, the most microbatches it holds, its idle time."""
        held, end = self._held(), self.timeline.makespan
        rows = []
        for rank, row in enumerate(self.schedule.rows):
            idle = number(self.timeline.breakdown(rank).idle / end if end else 0.0, "share")
            rows.append((f"rank {rank}", " ".join(map(_name, row)), held[rank], idle))
        caption = f"{self.schedule.name}: {', '.join(self._figures())} (predicted)"
        return Table.of(("rank", "actions", "most held, in microbatch-chunks", "idle"), rows, caption)


def _name(action: Any) -> str:
    return f"{action.kind}{action.microbatch}"


def _slot(span: Span, origin: float, kinds: list[Kind]) -> dict[str, Any]:
    kind = kind_of(span.name, span.lane)
    if kind not in kinds:
        kinds.append(kind)
    place = {"start": span.start - origin, "end": span.end - origin}
    return {"text": f"{span.name}{span.microbatch}", "stage": span.stage, "kind": kinds.index(kind), **place}

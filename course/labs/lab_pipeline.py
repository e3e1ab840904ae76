"""Lessons 7, 8 and 9: a pipeline's schedule, from slider or by hand, predicted and run by paced ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider, Steps, Text
from course.labs.go import Go
from course.labs.picture import stacked, table_png
from course.labs.work_pipeline import pipeline_step
from course.views.canvas_view import CanvasView
from course.views.curves import CurveView
from course.views.labels import number
from course.views.schedule_view import ScheduleView
from course.views.timeline import TimelineView
from minipar.hardware import PRESETS, Cluster, Link
from minipar.pipeline_parallel import NAMES, Schedule, build
from minipar.pipeline_parallel.run import actions_of
from minipar.pipeline_parallel.simulate import Cost
from minipar.trace import COMPUTE, Span, Timeline

SHOWN = 1.5  # seconds that a run lasts on the learner's clock, if its slots are then
SLOT = (0.012, 0.05)  # no shorter than a process can wait for with some precision, no longer than a learner wants to
NO_TIME = Link("no time", 0.0, float("inf"))
INSTANT = Cluster("messages in no time", PRESETS["cpu"].device, NO_TIME, NO_TIME)
SMALLEST, LARGEST = 0.25, 8.0  # costs of a stage
CURVES = 4  # as many ranks' activations are drawn: more lines say less


class PipelineLab(Lab):
    """All times are in slots: a forward of one microbatch through all that a rank holds takes one, a backward two.

    A stage whose cost is not 1 takes that many times as long. A chunk is a stage of its own, with its share of the rank's slot.
    """

    title = "Pipeline"

    def __init__(self, **values: object) -> None:
        self._built: tuple[object, ...] = ()  # the settings that the editor's schedule was made for
        super().__init__(**values)

    def controls(self) -> dict[str, Control]:
        return {
            "ranks": Slider("ranks", 1, 8, 4),
            "microbatches": Slider("microbatches", 1, 16, 8),
            "schedule": Choice("schedule", NAMES, "1f1b"),
            "chunks": Slider(
                "chunks", 1, 4, 2, help="stages on every rank; interleaved takes any number, the others have their own"
            ),
            "costs": Text("stage costs", "1", "of each stage in turn, such as 1 1 1 2; those left out cost 1"),
            "link": Steps("message takes", (0.0, 0.1, 0.25, 0.5, 1.0, 2.0), 0.0, "from rank to rank", "slots"),
        }

    def make_views(self) -> list[CanvasView]:
        self.timeline = TimelineView(unit="slots")
        self.held = CurveView("slots", "microbatches held", "activations held", height=200)
        self.editor = ScheduleView(build("1f1b", 1, 1), changed=self._edited)
        return [self.timeline, self.held, self.editor]

    def refuse(self, v: Settings) -> str | None:
        try:
            _costs(_build(v), v)
        except ValueError as error:
            return f"{error}."
        return None

    def predict(self, v: Settings) -> None:
        schedule = self._schedule(v)
        expected = self.editor.timeline
        self.timeline.show(predicted=expected, measured=None)
        self.held.clear()
        self._draw_held(schedule, expected)
        self.figures.predict("makespan", expected.makespan, "slots")
        for name, share in self._idle(expected):
            self.figures.predict(name, share, "share")
        self.figures.predict("slowest rank works", max(map(expected.busy, range(schedule.ranks))), "slots")
        for rank in range(schedule.ranks):
            self.figures.predict(_held_by(rank), _whole(schedule, expected.peak_activations[rank]), "microbatches")
        self.figures.predict("messages", _messages(schedule))

    def measure(self, go: Go, v: Settings) -> str:
        schedule = self._schedule(v)
        unit = min(max(SHOWN / self.editor.timeline.makespan, SLOT[0]), SLOT[1])
        options = {"hardware": INSTANT, "factor": unit, "live": [self.timeline], "keep": _is_action, "timeout": 60.0}
        _, out = go(schedule.ranks, pipeline_step, schedule, _pace(schedule, v, unit), **options)
        actions = in_slots(actions_of(out[0][0]), unit)
        self.timeline.show(measured=actions)
        self._draw_held(schedule, actions)
        self.figures.find("makespan", actions.makespan, "slots", "paced")
        for name, share in self._idle(actions):
            self.figures.find(name, share, "share", "paced")
        self.figures.find("slowest rank works", max(map(actions.busy, range(schedule.ranks))), "slots", "paced")
        for rank, (_, peak, _) in enumerate(out):
            self.figures.find(_held_by(rank), _whole(schedule, peak), "microbatches", "counted")
        self.figures.find("messages", sum(sent for _, _, sent in out), source="counted")
        name = schedule.name if schedule.name in NAMES else f"{v.schedule}, edited"
        return f"Paced: {schedule.ranks} processes, a slot of {unit * 1000:.0f} ms; schedule: {name}."

    def unused(self, v: Settings) -> tuple[str, ...]:
        """The chunks, where the schedule has its own."""
        return () if v.schedule == "interleaved" else ("chunks",)

    def png(self) -> bytes:
        """Without the editor: nobody can edit a picture, and the timeline shows the same."""
        return stacked([self.timeline.png(), self.held.png(), table_png(self.table(), self.said)])

    def _schedule(self, v: Settings) -> Schedule:
        """What the editor holds: made anew for another kind of schedule, else with the learner's moves, at the present costs."""
        shape = (v.schedule, v.ranks, v.microbatches, v.chunks)
        if self._built != shape:
            schedule = _build(v)
            self.editor.show(schedule, **_costs(schedule, v))  # those of the one before are of other stages
            self._built = shape
        self.editor.price(**_costs(self.editor.schedule, v))
        return self.editor.schedule

    def _edited(self, schedule: Schedule) -> None:
        """A move was accepted: predict and run what the editor now holds."""
        if self.panel is not None:
            self.post(self.values)

    def _idle(self, timeline: Timeline) -> list[tuple[str, float]]:
        """The idle share of the ranks' own spans; that of the makespan as well, where the schedule makes it another number."""
        expected = self.editor.timeline
        if number(expected.bubble, "share") == number(expected.makespan_bubble, "share"):
            return [("idle", timeline.bubble)]
        return [("idle of own spans", timeline.bubble), ("idle of the makespan", timeline.makespan_bubble)]

    def _draw_held(self, schedule: Schedule, timeline: Timeline) -> None:
        shown = sorted({round(i * (schedule.ranks - 1) / max(CURVES - 1, 1)) for i in range(CURVES)})
        for rank in shown:
            x, y = held_over_time(timeline, rank)
            self.held.show(f"rank {rank}", x, [_whole(schedule, held) for held in y], timeline.source)


def _is_action(span: Span) -> bool:
    """What the prediction shows as well: messages take no lane of their own in either picture."""
    return span.lane == COMPUTE


def _build(v: Settings) -> Schedule:
    return build(v.schedule, v.ranks, v.microbatches, v.chunks if v.schedule == "interleaved" else None)


def _costs(schedule: Schedule, v: Settings) -> dict[str, Any]:
    """Of one action, by stage, and of a message, in slots."""
    typed = str(v.costs).replace(",", " ").split()
    if len(typed) > schedule.stages:
        raise ValueError(f"stage costs: there are {schedule.stages} stages, and these are {len(typed)} numbers")
    factors = [_factor(word) for word in typed] + [1.0] * (schedule.stages - len(typed))
    each = [factor * schedule.ranks / schedule.stages for factor in factors]
    return {"forward": each, "input_grad": each, "weight_grad": each, "comm": v.link}


def _factor(word: str) -> float:
    try:
        factor = float(word)
    except ValueError:
        raise ValueError(f"stage costs: {word!r} is not a number; write a number for each stage, such as 1 1 1 2") from None
    if not SMALLEST <= factor <= LARGEST:
        raise ValueError(f"stage costs: {word} is not from {SMALLEST:g} to {LARGEST:g}")
    return factor


def _pace(schedule: Schedule, v: Settings, unit: float) -> dict[str, Cost]:
    """Seconds of one action, by kind and stage, and of a message."""
    costs = _costs(schedule, v)
    forward = [cost * unit for cost in costs["forward"]]
    return {"F": forward, "I": forward, "W": forward, "B": [2 * seconds for seconds in forward], "comm": costs["comm"] * unit}


def in_slots(timeline: Timeline, unit: float) -> Timeline:
    """A paced run whose slots took ``unit`` seconds, with slots for seconds."""
    spans: list[Span] = [s._replace(start=s.start / unit, end=s.end / unit) for s in timeline.spans]
    return Timeline(spans, timeline.ranks, "paced")


def _whole(schedule: Schedule, chunks: float) -> float:
    """Microbatch-chunks as microbatches: a chunk is a part of what a rank holds."""
    return chunks * schedule.ranks / schedule.stages


def _messages(schedule: Schedule) -> int:
    """An activation forward and a gradient backward, for each microbatch and each step from rank to rank."""
    return 2 * schedule.microbatches * sum(a != b for a, b in pairwise(schedule.placement))


def _held_by(rank: int) -> str:
    return f"most held by rank {rank}"


def held_over_time(timeline: Timeline, rank: int) -> tuple[list[float], list[float]]:
    """Microbatch-chunks held by ``rank``, as a curve that keeps each value until the next one comes.

    One let go and one taken up at the same moment change nothing.
    """
    x, y, before = [0.0], [0.0], 0
    for time, held in dict(timeline.live_activations(rank)).items():  # of one moment, what is held after all that happens in it
        if held != before:
            x += [time - timeline.start] * 2
            y += [before, held]
            before = held
    return x, y

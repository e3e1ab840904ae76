"""Lesson 10: one MLP on several ranks, its matrices cut by columns and rows, or by rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider, Steps
from course.labs.go import Go
from course.labs.links import link_menu, modelled, pacing_of, said
from course.labs.work_tensor import COLUMN_ROW, ROW_COLUMN, mlp_step
from course.views.canvas_view import CanvasView
from course.views.timeline import TimelineView
from minipar import comm
from minipar.trace import COMM, COMPUTE, Span, Timeline

SHOWN = 1.5  # seconds that a paced run lasts on the learner's clock, at least
CPU_FLOPS = 20e9  # a second, of all ranks together: slow motion leaves the ranks the time to compute for real


class Step(NamedTuple):
    """One thing that every rank does: a matrix product, or a collective on ``nbytes`` in full."""

    name: str
    phase: str
    flops: float = 0
    nbytes: float = 0


class TensorParallelLab(Lab):
    title = "Tensor parallel MLP"

    def controls(self) -> dict[str, Control]:
        return {
            "tp": Slider("tp", 1, 8, 4, help="ranks that share each matrix product"),
            "width": Steps(
                "width", (64, 128, 256, 512, 1024), 512, "numbers for each token; the MLP has 4 times as many hidden units"
            ),
            "order": Choice("order", (COLUMN_ROW, ROW_COLUMN), COLUMN_ROW, "how the first and the second matrix are cut"),
            "tokens": Steps("tokens", (64, 128, 256, 512, 1024), 256),
            "link": link_menu("a100-nvlink", measured=False),
        }

    def make_views(self) -> list[CanvasView]:
        self.timeline = TimelineView()
        return [self.timeline]

    def refuse(self, v: Settings) -> str | None:
        if v.order == ROW_COLUMN and v.width % v.tp:
            return f"rows first cuts the input of width {v.width} into equal pieces, and {v.tp} ranks do not divide it"
        return None

    def predict(self, v: Settings) -> None:
        expected = predicted(v)
        self.timeline.show(predicted=expected, measured=None)
        self.figures.predict("forward and backward", expected.makespan, "s")
        self.figures.predict("on one rank alone", predicted(Settings(**{**vars(v), "tp": 1})).makespan, "s")
        up, down = shapes(v)
        self.figures.predict("first matrix on rank 0", _by(up))
        self.figures.predict("second matrix on rank 0", _by(down))
        for phase in ("forward", "backward"):
            self.figures.predict(f"collectives {phase}", _names(expected, phase))
            self.figures.predict(f"sent by each rank {phase}", _sent(expected, phase), "B")

    def measure(self, go: Go, v: Settings) -> str:
        expected = predicted(v).makespan
        slowest = v.tp * modelled(v.link).device.seconds(1.0) ** -1 / CPU_FLOPS  # as many times slower as the CPUs need
        pacing = pacing_of(v.link, expected, max(SHOWN, min(6.0, expected * slowest)))
        _, out = go(v.tp, mlp_step, v.width, v.tokens, v.order, timeout=120.0, **pacing)
        factor = pacing["factor"]
        spans = [s._replace(start=s.start / factor, end=s.end / factor) for own, _, _ in out for s in own if s.name != "barrier"]
        seen = Timeline(spans, v.tp, "paced")
        self.timeline.show(measured=seen)
        self.figures.find("forward and backward", seen.makespan, "s", seen.source)
        for name, shape in zip(("first", "second"), out[0][1], strict=True):
            self.figures.find(f"{name} matrix on rank 0", _by(shape), source="counted")
        for phase in ("forward", "backward"):
            self.figures.find(f"collectives {phase}", _names(seen, phase), source="counted")
            self.figures.find(f"sent by each rank {phase}", _sent(seen, phase), "B", "counted")
        wrong = max(difference for _, _, difference in out) > 1e-4
        return said(v.link, factor) + (" The values are WRONG." if wrong else " Values equal those of the whole MLP.")


def shapes(v: Settings) -> tuple[list[int], list[int]]:
    """The two weights ``[out, in]`` on rank 0, which gets one more where they do not divide."""
    hidden, width = 4 * v.width, v.width
    if v.order == COLUMN_ROW:
        return [-(-hidden // v.tp), width], [width, -(-hidden // v.tp)]
    return [hidden, width // v.tp], [width // v.tp, hidden]


def steps(v: Settings) -> list[Step]:
    """What each rank does, in order; the largest share, where they differ."""
    up, down = shapes(v)
    first, second = 2.0 * v.tokens * up[0] * up[1], 2.0 * v.tokens * down[0] * down[1]
    narrow, wide = 4.0 * v.tokens * v.width, 16.0 * v.tokens * v.width  # bytes of x, and of the hidden units
    back = [("B down", second), ("B down", second), ("B up", first), ("B up", first)]
    b_down, b_up = ([Step(name, "backward", flops=flops) for name, flops in part] for part in (back[:2], back[2:]))
    if v.order == COLUMN_ROW:
        forward = [Step("F up", "", first), Step("F down", "", second), Step("all_reduce", "", nbytes=narrow)]
        return [*forward, *b_down, *b_up, Step("all_reduce", "backward", nbytes=narrow)]
    forward = [Step("F up", "", first), Step("all_reduce", "", nbytes=wide)]
    forward += [Step("F down", "", second), Step("all_gather", "", nbytes=narrow)]
    middle = Step("all_reduce", "backward", nbytes=wide)
    return [*forward, *b_down, middle, *b_up, Step("all_gather", "backward", nbytes=narrow)]


def predicted(v: Settings) -> Timeline:
    """The steps one after the other, on all ranks alike."""
    cluster, clock, spans = modelled(v.link), 0.0, []
    for step in steps(v):
        if not step.flops and v.tp == 1:
            continue
        seconds = (
            cluster.device.seconds(step.flops) if step.flops else cluster.collective_seconds(step.name, step.nbytes, range(v.tp))
        )
        sent = 0.0 if step.flops else comm.wire_bytes(step.name, step.nbytes, v.tp)
        lane, axis = (COMPUTE, "") if step.flops else (COMM, "world")
        one = Span(0, lane, step.name, clock, clock + seconds, axis, sent, phase=step.phase)
        spans += [one._replace(rank=rank) for rank in range(v.tp)]
        clock += seconds
    return Timeline(spans, v.tp, "predicted")


def _of(timeline: Timeline, phase: str) -> list[Span]:
    return [s for s in timeline.of(0, COMM) if (s.phase == "backward") == (phase == "backward")]


def _names(timeline: Timeline, phase: str) -> str:
    return " + ".join(s.name for s in _of(timeline, phase)) or "none"


def _sent(timeline: Timeline, phase: str) -> float:
    return sum(s.nbytes for s in _of(timeline, phase))


def _by(shape: Sequence[int]) -> str:
    return " x ".join(str(size) for size in shape)

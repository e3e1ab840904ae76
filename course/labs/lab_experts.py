"""Lesson 12: a router that collapses while it learns, the rank that everybody waits for, and what spreads the load again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider, Steps
from course.labs.go import Go
from course.labs.links import modelled, pace
from course.labs.slow_motion import slowed
from course.labs.work_experts import Seen, train_experts
from course.live import on
from course.views.canvas_view import CanvasView
from course.views.experts import ExpertsView
from course.views.timeline import TimelineView
from minipar import comm
from minipar.expert_parallel import MoEOptions
from minipar.expert_parallel.options import ROUTERS
from minipar.expert_parallel.skewed import IN_ORDER, PLACEMENTS, Setting, Step
from minipar.hardware import Cluster
from minipar.trace import COMM, COMPUTE, Span, Timeline

LAST = 20  # steps that a figure is the mean of
SHOWN = 2.0  # seconds that the paced pass lasts on the learner's clock
LINK = "a100-nvlink"
SCALE = 64  # the timeline's experts are so many times wider than those that train, in both directions
DROPLESS = "dropless"
ROW = 4 * Setting.width  # bytes of a token, float32


class Part(NamedTuple):
    """One thing that every rank does: experts' work, or a collective on ``nbytes`` (of an all-to-all, what leaves)."""

    name: str
    flops: float = 0
    nbytes: float = 0
    phase: str = ""


class ExpertsLab(Lab):
    title = "Mixture of experts"

    def controls(self) -> dict[str, Control]:
        return {
            "experts": Steps("experts", (4, 8, 16), 8),
            "top_k": Slider("top-k", 1, 4, 1, help="experts that each token goes to"),
            "router": Choice("router", ROUTERS, "top-k", "sigmoid: with a bias that follows the load, and no loss"),
            "balance": Steps("balance", (0.0, 0.001, 0.01, 0.1), 0.0, "what the balance loss counts beside the main loss"),
            "capacity": Steps("capacity", (DROPLESS, 2.0, 1.5, 1.25, 1.0), DROPLESS, "copies an expert takes, over its fair share"),
            "skew": Steps("skew", (0.0, 0.25, 0.5, 0.75), 0.5, "share of the text that is one passage again and again"),
            "ranks": Steps("ranks", (1, 2, 4), 4),
            "placement": Choice("placement", PLACEMENTS, IN_ORDER, f"by load: measured in the first {Setting.moved} steps"),
            "steps": Steps("steps", (20, 100, 200, 400), 200),
        }

    def make_views(self) -> list[CanvasView]:
        self.load, self.timeline, self.run = ExpertsView(8, 4), TimelineView(), 0
        return [self.load, self.timeline]

    def refuse(self, v: Settings) -> str | None:
        if v.top_k > v.experts:
            return f"no token can go to {v.top_k} of {v.experts} experts"
        if v.router == "switch" and v.top_k != 1:
            return f"the Switch router sends each token to one expert, not to {v.top_k}"
        if v.placement != IN_ORDER and v.steps <= Setting.moved:
            return f"the experts move by the load of the first {Setting.moved} steps, and these are {v.steps}"
        return None

    def predict(self, v: Settings) -> None:
        """What an even spread would give: the router's own choices are what the run is for."""
        self.load.clear(v.experts, v.ranks)
        even = predicted(v)
        self.timeline.show(predicted=even, measured=None)
        self.figures.predict("busiest expert, last steps", 1.0, "x the mean")
        self.figures.predict("busiest rank, last steps", 1.0, "x the mean")
        self.figures.predict("dropped, last steps", 0.0, "share")
        self.figures.predict("all-to-all of a step, all ranks", traffic(v), "B")
        self.figures.predict("the layer, forward and backward", even.makespan, "s")

    def measure(self, go: Go, v: Settings) -> str:
        factor = max(1.0, SHOWN / predicted(v).makespan)
        live = [on("step", self._new_run(v))]
        _, out = go(v.ranks, train_experts, setting(v), v.steps, slowed(scaled(), factor), live=live, timeout=120.0)
        seen = pass_of(out, factor)
        self.timeline.show(measured=seen)
        history = out[0].steps
        self._find(history[-LAST:])
        self.figures.find("the layer, forward and backward", seen.makespan, "s", "paced")
        ends = min(LAST, len(history) // 2)  # of a short run, its halves: not twice the whole
        self.figures.find("loss, first and last steps", f"{_loss(history[:ends]):.3f}, {_loss(history[-ends:]):.3f}")
        width = Setting.width * SCALE
        return f"Predicted is an even spread. Times paced as {LINK}, experts {width} wide, {pace(factor)}."

    def _new_run(self, v: Settings) -> Callable[[Any], None]:
        """What takes in the steps of a run, and none of the run before it."""
        self.load.clear(v.experts, v.ranks)
        self.run = number = self.run + 1

        def push(event: Any) -> None:
            if number == self.run:
                self.load.push(*event.payload)

        return push

    def _find(self, last: list[Step]) -> None:
        loads = [step.loads[0] for step in last]
        busiest = [max(step.rows) * len(step.rows) / max(1, sum(step.rows)) for step in last]
        sent = [float(sum(map(sum, step.traffic))) for step in last]
        self.figures.find("busiest expert, last steps", _mean([load.max_over_mean for load in loads]), "x the mean", "counted")
        self.figures.find("busiest rank, last steps", _mean(busiest), "x the mean", "counted")
        self.figures.find("dropped, last steps", _mean([load.drop_share for load in loads]), "share", "counted")
        self.figures.find("all-to-all of a step, all ranks", _mean(sent), "B", "counted")


def setting(v: Settings) -> Setting:
    """What the ranks train."""
    capacity = None if v.capacity == DROPLESS else v.capacity
    moe = MoEOptions(router=v.router, renormalise=False, capacity=capacity, balance=v.balance, bias_rate=0.004)
    return Setting(v.experts, v.top_k, v.skew, moe, v.placement)


def scaled() -> Cluster:
    """``LINK`` for tokens and experts' hidden layers that are ``SCALE`` times wider than those the ranks compute with."""
    cluster = modelled(LINK)
    link = replace(cluster.inside, bandwidth=cluster.inside.bandwidth / SCALE)
    return replace(cluster, device=replace(cluster.device, peak_flops=cluster.device.peak_flops / SCALE**2), inside=link)


def copies(v: Settings) -> float:
    """Of each rank's tokens, as many as go to experts."""
    return Setting.rows * Setting.seq * v.top_k / v.ranks


def traffic(v: Settings) -> float:
    """Bytes that all ranks send in one training step: each copy that leaves home crosses twice forward and twice backward."""
    return 4 * ROW * copies(v) * (v.ranks - 1)


def parts(v: Settings) -> list[Part]:
    """What each rank does in one pass through the layer, in order, when the load is even."""
    away = ROW * copies(v) * (v.ranks - 1) / v.ranks
    flops = 6.0 * copies(v) * Setting.width * Setting.ffn
    out = [Part("all_reduce", nbytes=8.0 * (v.experts + 1))]  # how many tokens each expert gets
    if v.capacity != DROPLESS or v.router == "expert-choice":  # every rank must know all queues
        asked = copies(v) * (v.experts / v.top_k if v.router == "expert-choice" else 1)
        out += 2 * [Part("all_gather", nbytes=8.0 * v.ranks), Part("all_gather", nbytes=8.0 * asked * v.ranks)]
    out += [Part("all_to_all counts", nbytes=8.0 * v.experts), Part("all_to_all dispatch", nbytes=away)]
    out += [Part("F experts", flops=flops), Part("all_to_all combine", nbytes=away)]
    back = [Part("all_to_all combine", nbytes=away), Part("B experts", flops=2 * flops), Part("all_to_all dispatch", nbytes=away)]
    return out + [part._replace(phase="backward") for part in back]


def predicted(v: Settings) -> Timeline:
    """The parts one after the other, on all ranks alike."""
    cluster, clock, spans = scaled(), 0.0, []
    for part in parts(v):
        if not part.flops and v.ranks == 1:
            continue
        op = part.name.split()[0]
        comm_seconds = cluster.collective_seconds(op, part.nbytes, range(v.ranks)) if not part.flops else 0.0
        seconds = cluster.device.seconds(part.flops) if part.flops else comm_seconds
        sent = part.nbytes if op == "all_to_all" else 0.0 if part.flops else comm.wire_bytes(op, part.nbytes, v.ranks)
        lane = COMPUTE if part.flops else COMM
        one = Span(0, lane, part.name, clock, clock + seconds, nbytes=sent, phase=part.phase)
        spans += [one._replace(rank=rank) for rank in range(v.ranks)]
        clock += seconds
    return Timeline(spans, v.ranks, "predicted")


def pass_of(out: list[Seen], factor: float) -> Timeline:
    """One pass of all ranks, in the modelled hardware's time."""
    spans = [s._replace(start=s.start / factor, end=s.end / factor) for seen in out for s in seen.spans]
    return Timeline(spans, len(out), "paced")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _loss(steps: list[Step]) -> float:
    return _mean([step.loss for step in steps])

"""Lesson 15: every way of splitting at once, under a memory cap; predicted, then run on real ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Steps
from course.labs.go import Go
from course.labs.slow_motion import slowed
from course.labs.work_blend import Seen, blend_step
from course.views.canvas_view import CanvasView
from course.views.mesh_view import MeshView
from course.views.stacks import StacksView
from course.views.timeline import TimelineView
from minipar.hardware import PRESETS, Cluster, Link
from minipar.model import GPTConfig
from minipar.pipeline_parallel import NAMES
from minipar.planner import Job, Step, predict_step
from minipar.planner.holdings import own_layers
from minipar.planner.memory import Memory
from minipar.trace import COMM, Timeline

SHOWN = 1.5  # seconds that a step lasts on the learner's clock
ROWS = 16
SMALLER = 128  # as many times smaller than a model of our time is every dimension of this one but its layers
AXES = {"dp": "rows", "pp": "layers", "cp": "tokens", "tp": "matrices", "ep": "experts"}
A100 = PRESETS["a100-nvlink"]
LINKS = {  # between the two nodes; inside a node it is always the first. Bytes per second one way, for each device
    link.name: link
    for link in (
        A100.inside,
        A100.between,
        Link("Ethernet 100 Gb/s", 10e-6, 12.5e9),
        Link("Ethernet 25 Gb/s", 20e-6, 3.125e9),
        Link("Ethernet 10 Gb/s", 30e-6, 1.25e9),
        Link("Ethernet 1 Gb/s", 100e-6, 0.125e9),
    )
}
PARTS = ("params", "gradients", "optimizer", "activations")
MB = 1e6


class BlendLab(Lab):
    """Two nodes of A100s, and a GPT 64 wide on 64 tokens, which stands for one 8,192 wide on 8,192: see ``small``."""

    title = "Blend"

    def controls(self) -> dict[str, Control]:
        sizes = (1, 2, 4, 8)
        axes = {name: Steps(name, sizes, 2 if name in ("dp", "tp") else 1, f"ranks that split the {what}")
                for name, what in AXES.items()}  # fmt: skip
        return {
            "ranks": Steps("ranks", sizes, 4, "half of them in each node"),
            **axes,
            "microbatches": Steps("microbatches", (1, 2, 4, 8), 8, "parts of each rank's rows, one after the other"),
            "schedule": Choice("schedule", tuple(name for name in NAMES if name != "zb-auto"), "1f1b", "of the pipeline"),
            "experts": Steps("experts", (0, 4, 8), 0, "in each layer; 0: every MLP is dense"),
            "link": Choice("link", tuple(LINKS), A100.inside.name, "between the nodes; inside a node it is NVLink"),
            "cap": Steps("cap MB", (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0), 3.0, "memory: of live tensors on each rank"),
            "slow": Steps("last rank x", (1.0, 1.5, 2.0, 3.0), 1.0, "how many times as long the last rank computes"),
        }

    def make_views(self) -> list[CanvasView]:
        self.mesh = MeshView()
        self.memory = StacksView("memory of each rank, AdamW")
        self.bytes = StacksView("sent over each axis in a step, by all ranks")
        self.timeline = TimelineView()
        return [self.mesh, self.memory, self.bytes, self.timeline]

    def refuse(self, v: Settings) -> str | None:
        product = v.dp * v.pp * v.cp * v.tp
        if product != v.ranks:
            return f"dp {v.dp} x pp {v.pp} x cp {v.cp} x tp {v.tp} = {product} ranks, and there are {v.ranks}."
        reason = job_of(v).refusal()
        return reason and f"{reason}."

    def predict(self, v: Settings) -> None:
        step = predicted(v)
        job, memory = step.job, step.memory()
        self._draw_mesh(job)
        ranks = [f"rank {rank}" for rank in range(job.ranks)]
        self.memory.show(ranks, _stacked(memory), None, v.cap * MB)
        sent = step.bytes_by_axis
        self.bytes.show(list(sent), {"bytes": list(sent.values())}, None)
        self.timeline.show(predicted=step.timeline, measured=None)
        self._figures(self.figures.predict, step.timeline, job, memory, sent)

    def measure(self, go: Go, v: Settings) -> str:
        step = predicted(v)
        most = max(memory.total for memory in step.memory())
        if most > v.cap * MB:
            return f"Not run: the fullest rank needs {most / MB:.1f} MB (predicted), and the cap is {v.cap} MB."
        factor = SHOWN / step.seconds
        watched = self.panel is not None
        options = {"hardware": slowed(step.where, factor), "factor": factor, "live": [self.timeline] if watched else []}
        _, out = go(v.ranks, blend_step, step.job, None, watched, timeout=120.0, **options)
        seen, memory = as_timeline(out, factor), [own.memory for own in out]
        sent = sent_by_axis(out)
        self.timeline.show(measured=seen)
        self.memory.show(counted=_stacked(memory))
        self.bytes.show(counted={"bytes": [sent.get(axis, 0.0) for axis in self.bytes.groups]})
        self._figures(self.figures.find, seen, step.job, memory, sent, found=True)
        return f"Paced as two nodes of A100s with {v.link} between them, in their own time. Loss {out[0].loss:.4f} (measured)."

    def settings(self) -> str:
        """Without the axes of one rank, and what is not in use."""
        idle = dict.fromkeys(AXES, 1) | {"experts": 0, "slow": 1.0} | ({} if self.values["pp"] > 1 else {"schedule": "1f1b"})
        shown = {name: c.label for name, c in self.controls().items() if self.values[name] != idle.get(name)}
        return ", ".join(f"{label} {self.values[name]}" for name, label in shown.items())

    def _draw_mesh(self, job: Job) -> None:
        lines = {axis: list(dict.fromkeys(job.line(axis, place) for place in job.places())) for axis in AXES if job.size(axis) > 1}
        self.mesh.show(job.ranks, lines, AXES, [holds(job, rank) for rank in range(job.ranks)])

    def _figures(
        self, say: Any, timeline: Timeline, job: Job, memory: list[Memory], sent: dict[str, float], found: bool = False
    ) -> None:
        """The same rows, predicted or found."""
        timed, counted = (("paced",), ("counted",)) if found else ((), ())
        say("step", timeline.makespan, "s", *timed)
        say("tokens per second", job.tokens / timeline.makespan, "tokens/s", *timed)
        say("ranks not computing", timeline.makespan_bubble, "share", *timed)
        say("fullest rank", max(m.total for m in memory), "B", *counted)
        for axis in self.bytes.groups:
            say(f"sent over {axis}", sent.get(axis, 0.0), "B", *counted)


def job_of(v: Settings) -> Job:
    config = GPTConfig(layers=4, width=64, heads=8, seq=64, experts=v.experts)
    sizes = {name: getattr(v, name) for name in AXES}
    return Job(config, ROWS, **sizes, microbatches=v.microbatches, schedule=v.schedule, sequence_parallel=True)


def predicted(v: Settings) -> Step:
    slow = ((v.ranks - 1, v.slow),) if v.slow > 1 else ()
    return predict_step(job_of(v), replace(two_nodes(v.link, v.ranks), stragglers=slow))


def two_nodes(link: str, ranks: int) -> Cluster:
    """Two nodes with half of the ranks each, as small as the lab's GPT."""
    return small(replace(A100, between=LINKS[link], ranks_per_node=max(1, ranks // 2)))


def small(cluster: Cluster) -> Cluster:
    """``cluster`` for a model that is ``SMALLER`` times as wide and long: in the same time it does that much less.

    A product has three dimensions that shrink, a message two; and the numbers here have 4 bytes for 2.
    """

    def link(x: Link) -> Link:
        return replace(x, bandwidth=x.bandwidth / SMALLER**2 * 2)

    device = replace(cluster.device, peak_flops=cluster.device.peak_flops / SMALLER**3)
    return replace(cluster, device=device, inside=link(cluster.inside), between=link(cluster.between))


def holds(job: Job, rank: int) -> str:
    """The layers of one rank, in words."""
    layers, last = own_layers(job, job.place(rank)), job.config.layers + 1
    blocks = [layer for layer in layers if 0 < layer < last]
    many = f"blocks {', '.join(map(str, blocks))}" if len(blocks) > 1 else f"block {blocks[0]}" if blocks else ""
    return ", ".join(filter(None, ("embedding" if 0 in layers else "", many, "head" if last in layers else "")))


def as_timeline(out: list[Seen], factor: float) -> Timeline:
    """The step in the modelled hardware's own time."""
    spans = [s._replace(rank=rank, start=s.start / factor, end=s.end / factor) for rank, own in enumerate(out) for s in own.spans]
    return Timeline(spans, len(out), "paced")


def sent_by_axis(out: list[Seen]) -> dict[str, float]:
    """Bytes that all ranks put on the wire, by axis: counted."""
    total: Counter[str] = Counter()
    for own in out:
        for span in own.spans:
            if span.lane == COMM and span.nbytes:
                total[span.axis] += span.nbytes  # type: ignore[assignment]
    return dict(total)


def _stacked(memory: list[Memory]) -> dict[str, list[float]]:
    names = ("parameters", "gradients", "optimizer", "activations")
    return {name: [getattr(m, part) for m in memory] for name, part in zip(names, PARTS, strict=True)}

"""Lesson 11: attention over a sequence that is cut over the ranks, by a ring, a zigzag ring, or a trade of heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider, Steps
from course.labs.go import Go
from course.labs.links import link_menu, modelled, said
from course.labs.slow_motion import slowed
from course.labs.work_context import HEAD_DIM, HEADS, attention_step
from course.views.canvas_view import CanvasView
from course.views.masks import AHEAD, MINE, OTHERS, MaskView
from course.views.timeline import TimelineView
from minipar.context_parallel import METHODS, TokenLayout, predicted
from minipar.context_parallel.softmax import BACKWARD_FLOPS, FORWARD_FLOPS
from minipar.hardware import Cluster, Link
from minipar.trace import COMM, Span, Timeline

MOST_RANKS = 8
PICTURE = 48  # tokens that a picture's square stands for, about
LONGER = 64  # the tokens that each token on the ranks stands for: 960 of them take as long as 61,440 on the modelled hardware
SHOWN = 1.5  # seconds that a paced run lasts on the learner's clock, at least
CPU_FLOPS = 6e9  # a second, of all ranks together: slow motion leaves the ranks the time to compute for real
LATE = 0.05  # the share of a run by which real computing may exceed what it is modelled to take


class LongContextLab(Lab):
    title = "Long context"

    def controls(self) -> dict[str, Control]:
        return {
            "cp": Slider("cp", 1, 8, 4, help="ranks that share the sequence"),
            "tp": Steps("tp", (1, 2, 4), 1, "ranks that share the heads of each piece of it"),
            "seq": Steps("sequence", (15_360, 30_720, 61_440, 122_880), 61_440, "tokens"),
            "method": Choice("method", METHODS, "ring"),
            "link": link_menu("a100-nvlink", measured=False),
        }

    def make_views(self) -> list[CanvasView]:
        self.masks, self.timeline = MaskView(), TimelineView()
        return [self.masks, self.timeline]

    def refuse(self, v: Settings) -> str | None:
        if v.cp * v.tp > MOST_RANKS:
            return f"cp {v.cp} x tp {v.tp} = {v.cp * v.tp} ranks, and this lab starts {MOST_RANKS} at most"
        if v.method == "ulysses" and HEADS // v.tp % v.cp:
            return f"Ulysses deals {HEADS // v.tp} heads out to {v.cp} ranks, and they do not divide"
        try:
            TokenLayout.of(v.method, v.cp).refuse(v.seq)
        except ValueError as error:
            return str(error)
        return None

    def predict(self, v: Settings) -> None:
        layout = TokenLayout.of(v.method, v.cp)
        self.masks.show(masks(layout, v.tp), pairs(layout, v.seq, v.tp), notes(layout, v.tp))
        expected = theory(v)
        self.timeline.show(predicted=expected, measured=None)
        self.figures.predict("forward and backward", expected.makespan, "s")
        self.figures.predict("on one rank alone", theory(Settings(**{**vars(v), "cp": 1, "tp": 1})).makespan, "s")
        self.figures.predict("with each step waiting for its busiest rank", waiting(layout, v.seq), "x the mean work")
        for phase in ("forward", "backward"):
            self.figures.predict(f"sent by each rank {phase}", sent(layout, v.seq, phase) / v.tp, "B")
        self.figures.predict("kept for backward by each rank", kept(v.seq / v.cp) / v.tp, "B")
        self.figures.predict("kept by one rank alone", kept(v.seq), "B")

    def measure(self, go: Go, v: Settings) -> str:
        expected = theory(v)
        factor = max(1.0, shown(v, expected) / expected.makespan)
        hardware = slowed(shrunk(modelled(v.link)), factor)
        step = (attention_step, v.method, v.seq // LONGER, v.tp)
        _, out = go(expected.ranks, *step, hardware=hardware, factor=factor, timeout=120.0)
        spans = [s._replace(start=s.start / factor, end=s.end / factor) for own, *_ in out for s in own]
        seen = Timeline([s._replace(nbytes=LONGER * s.nbytes) for s in spans], expected.ranks, "paced")
        self.timeline.show(measured=seen)
        self.figures.find("forward and backward", seen.makespan, "s", seen.source)
        spans = seen.of(0, COMM)
        for phase in ("forward", "backward"):
            self.figures.find(f"sent by each rank {phase}", _sent(spans, phase), "B", "counted")
        self.figures.find("kept for backward by each rank", LONGER * max(nbytes for _, nbytes, _ in out), "B", "counted")
        wrong = max(difference for *_, difference in out) > 1e-4
        right = "The values are WRONG." if wrong else "Values and gradients equal those of one rank."
        return f"{said(v.link, factor)} {right} Each token on the ranks stands for {LONGER}."


def theory(v: Settings) -> Timeline:
    """Ranks that share heads are neighbours; they do the same beside each other, and have nothing to say to each other."""
    cluster = modelled(v.link)
    cluster = replace(cluster, ranks_per_node=max(1, cluster.ranks_per_node // v.tp))
    one = predicted.timeline(TokenLayout.of(v.method, v.cp), v.seq, HEADS // v.tp, HEAD_DIM, cluster)
    spans = [
        s._replace(rank=s.rank * v.tp + member, peers=tuple(peer * v.tp + member for peer in s.peers))
        for s in one.spans
        for member in range(v.tp)
    ]
    return Timeline(spans, v.cp * v.tp, "predicted")


def shrunk(cluster: Cluster) -> Cluster:
    """Hardware on which a sequence takes as long as one ``LONGER`` times as long on ``cluster``: more pairs, more bytes."""

    def link(x: Link) -> Link:
        return replace(x, bandwidth=x.bandwidth / LONGER)

    device = replace(cluster.device, peak_flops=cluster.device.peak_flops / LONGER**2)
    return replace(cluster, device=device, inside=link(cluster.inside), between=link(cluster.between))


def shown(v: Settings, expected: Timeline) -> float:
    """Seconds of slow motion: long enough that what the CPUs need for all ranks' arithmetic does not show."""
    real = sum(pairs(TokenLayout.of(v.method, v.cp), v.seq // LONGER, v.tp))
    flops = (FORWARD_FLOPS + BACKWARD_FLOPS) * HEAD_DIM * real
    modelled_share = max(map(expected.busy, range(expected.ranks))) / expected.makespan
    return max(SHOWN, min(6.0, flops / CPU_FLOPS / (LATE + modelled_share)))


def pairs(layout: TokenLayout, seq: int, tp: int = 1) -> list[int]:
    """Query-key pairs that each rank computes, over all its heads."""
    heads = HEADS // layout.ulysses // tp
    return [heads * sum(steps) for steps in layout.work(seq) for _ in range(tp)]


def waiting(layout: TokenLayout, seq: int) -> float:
    """How much longer than its mean work the ring takes, when each step waits for the rank with the most to do."""
    work = np.array(layout.work(seq))  # [ranks, steps]
    return float(work.max(axis=0).sum() / work.sum(axis=1).mean())


def masks(layout: TokenLayout, tp: int = 1) -> np.ndarray:
    """``[ranks, size, size]``: what each rank computes of a short sequence that is laid out in the same way."""
    size = layout.multiple * max(1, round(PICTURE / layout.multiple))
    seen = np.tril(np.ones((size, size), dtype=bool))
    picture = np.where(seen, OTHERS, AHEAD)[None].repeat(layout.ranks, 0)
    for rank in range(layout.ranks):
        team = range(rank // layout.ulysses * layout.ulysses, (rank // layout.ulysses + 1) * layout.ulysses)
        rows = np.concatenate([layout.positions(size, member).numpy() for member in team])
        picture[rank, rows] = np.where(seen[rows], MINE, AHEAD)
    return picture.repeat(tp, 0)


def notes(layout: TokenLayout, tp: int = 1) -> list[str]:
    """The heads of each rank: those of its place among the ``tp``, and of these its share within a Ulysses team."""
    share = HEADS // tp // layout.ulysses
    firsts = [member * HEADS // tp + rank % layout.ulysses * share for rank in range(layout.ranks) for member in range(tp)]
    if share == HEADS:
        return [f"all {HEADS} heads"] * len(firsts)
    return [f"heads {first} to {first + share - 1}" if share > 1 else f"head {first}" for first in firsts]


def tensor(tokens: float) -> float:
    """Bytes of one of q, k, v and the result, for so many tokens, in float32."""
    return 4.0 * HEADS * HEAD_DIM * tokens


def sent(layout: TokenLayout, seq: int, phase: str) -> float:
    """A ring sends keys and values on, and backward their gradients as well; Ulysses trades q, k, v and the result."""
    n = layout.ranks
    if layout.ulysses > 1:
        return (n - 1) / n * 4 * tensor(seq / n)
    return (n - 1) / n * 2 * tensor(seq) * (2 if phase == "backward" else 1)


def kept(tokens: float) -> float:
    """q, k, v, the result, and one logarithm for each query and head."""
    return 4 * tensor(tokens) + 4.0 * HEADS * tokens


def _sent(spans: list[Span], phase: str) -> float:
    return sum(s.nbytes for s in spans if (s.phase == "backward") == (phase == "backward"))

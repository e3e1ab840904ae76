"""Lesson 11: attention over a sequence that is cut over the ranks, by a ring, a zigzag ring, or a trade of heads."""

from __future__ import annotations

import numpy as np

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider, Steps
from course.labs.go import Go
from course.labs.work_context import HEAD_DIM, HEADS, attention_step
from course.views.canvas_view import CanvasView
from course.views.masks import AHEAD, MINE, OTHERS, MaskView
from minipar.context_parallel import METHODS, Layout
from minipar.trace import COMM, Span

PICTURE = 48  # tokens that a picture's square stands for, about


class LongContextLab(Lab):
    title = "Long context"

    def controls(self) -> dict[str, Control]:
        return {
            "cp": Slider("cp", 1, 8, 4, help="ranks that share the sequence"),
            "seq": Steps("sequence", (240, 480, 960, 1920), 960, "tokens"),
            "method": Choice("method", METHODS, "ring"),
        }

    def make_views(self) -> list[CanvasView]:
        self.masks = MaskView()
        return [self.masks]

    def refuse(self, v: Settings) -> str | None:
        if v.method == "ulysses" and HEADS % v.cp:
            return f"Ulysses deals {HEADS} heads out to {v.cp} ranks, and they do not divide"
        try:
            Layout.of(v.method, v.cp).refuse(v.seq)
        except ValueError as error:
            return str(error)
        return None

    def predict(self, v: Settings) -> None:
        layout = Layout.of(v.method, v.cp)
        work = pairs(layout, v.seq)
        self.masks.show(masks(layout), work, notes(layout))
        self.figures.predict("with each step waiting for its busiest rank", waiting(layout, v.seq), "x the mean work")
        for phase in ("forward", "backward"):
            self.figures.predict(f"sent by each rank {phase}", sent(layout, v.seq, phase), "B")
        self.figures.predict("kept for backward by each rank", kept(v.seq / v.cp), "B")
        self.figures.predict("kept by one rank alone", kept(v.seq), "B")

    def measure(self, go: Go, v: Settings) -> str:
        _, out = go(v.cp, attention_step, v.method, v.seq)
        spans = [s for s in out[0][0] if s.lane == COMM]
        for phase in ("forward", "backward"):
            self.figures.find(f"sent by each rank {phase}", _sent(spans, phase), "B", "counted")
        self.figures.find("kept for backward by each rank", max(bytes_ for _, bytes_, _ in out), "B", "counted")
        wrong = max(difference for *_, difference in out) > 1e-4
        return "Real ranks in float32." + (" The values are WRONG." if wrong else " Values and gradients equal those of one rank.")


def pairs(layout: Layout, seq: int) -> list[int]:
    """Query-key pairs that each rank computes, over all heads."""
    heads = HEADS // layout.ulysses
    return [heads * sum(steps) for steps in layout.work(seq)]


def waiting(layout: Layout, seq: int) -> float:
    """How much longer than its mean work the ring takes, when each step waits for the rank with the most to do."""
    work = np.array(layout.work(seq))  # [ranks, steps]
    return float(work.max(axis=0).sum() / work.sum(axis=1).mean())


def masks(layout: Layout) -> np.ndarray:
    """``[ranks, size, size]``: what each rank computes of a short sequence that is laid out in the same way."""
    size = layout.multiple * max(1, round(PICTURE / layout.multiple))
    seen = np.tril(np.ones((size, size), dtype=bool))
    picture = np.where(seen, OTHERS, AHEAD)[None].repeat(layout.ranks, 0)
    for rank in range(layout.ranks):
        team = range(rank // layout.ulysses * layout.ulysses, (rank // layout.ulysses + 1) * layout.ulysses)
        rows = np.concatenate([layout.positions(size, member).numpy() for member in team])
        picture[rank, rows] = np.where(seen[rows], MINE, AHEAD)
    return picture


def notes(layout: Layout) -> list[str]:
    share = HEADS // layout.ulysses
    if layout.ulysses == 1:
        return [f"all {HEADS} heads"] * layout.ranks
    return [f"heads {first} to {first + share - 1}" if share > 1 else f"head {first}" for first in range(0, HEADS, share)]


def tensor(tokens: float) -> float:
    """Bytes of one of q, k, v and the result, for so many tokens, in float32."""
    return 4.0 * HEADS * HEAD_DIM * tokens


def sent(layout: Layout, seq: int, phase: str) -> float:
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

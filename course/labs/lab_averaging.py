"""Lesson 3: shards of unequal size. Averaged by tokens, the ranks learn what one process learns; averaged by ranks, they do not."""

from __future__ import annotations

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider
from course.labs.go import Go
from course.labs.work import BY_RANKS, BY_TOKENS, STEPS_OF_TRAINING, shard_rows, train_on_shards
from course.live import on
from course.views.canvas_view import CanvasView
from course.views.curves import CurveView

ONE, MANY = "one process", "these ranks"


class AveragingLab(Lab):
    title = "Unequal shards"

    def controls(self) -> dict[str, Control]:
        return {
            "ranks": Slider("ranks", 2, 8, 4),
            "skew": Slider("rank 0 holds", 1, 8, 4, help="how many times as many tokens as each other rank"),
            "how": Choice("average", [BY_TOKENS, BY_RANKS], BY_RANKS),
        }

    def make_views(self) -> list[CanvasView]:
        self.curve = CurveView("step", "loss", "loss over all tokens of the step")
        return [self.curve]

    def predict(self, v: Settings) -> None:
        self.curve.clear()
        weights = token_weights(v.ranks, v.skew, v.how)
        self.figures.predict("a token on rank 0 counts", weights[0], "times its share")
        self.figures.predict("a token on the last rank counts", weights[-1], "times its share")
        same = weights[0] == weights[-1]
        self.figures.predict("gradient differs from one process", 0.0 if same else "more than 0", "share")
        self.figures.predict("loss gap at the last step", 0.0 if same else "more than 0")

    def measure(self, go: Go, v: Settings) -> str:
        losses: dict[str, list[float]] = {ONE: [], MANY: []}

        def push(event: object) -> None:
            name, step, loss = event.payload  # type: ignore[attr-defined]
            losses[name].append(loss)
            self.curve.push(name, step, loss)

        _, out = go(v.ranks, train_on_shards, v.skew, v.how, live=[on("loss", push)])
        self.figures.find("gradient differs from one process", out[0], "share")
        self.figures.find("loss gap at the last step", abs(losses[MANY][-1] - losses[ONE][-1]))
        return f"Measured on this machine's CPU, in {STEPS_OF_TRAINING} steps of plain SGD on real text."


def token_weights(ranks: int, skew: int, how: str) -> list[float]:
    """What a token of each rank counts for, in multiples of its fair share ``1 / all tokens``."""
    rows = shard_rows(ranks, skew)
    if how == BY_TOKENS:
        return [1.0] * ranks
    return [sum(rows) / (ranks * own) for own in rows]

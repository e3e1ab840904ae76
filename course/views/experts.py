"""``ExpertsView``: which experts the router chose, who is slowest for it, what was dropped, and what crossed the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from course.views.canvas_view import CanvasView, floats
from course.views.esm import bundle
from course.views.experts_png import experts_figure
from course.views.kinds import SCALE
from course.views.labels import number
from course.views.table import Table

MOST_COLUMNS = 512  # beyond it, neighbouring steps are averaged


class ExpertsView(CanvasView):
    """Tokens per expert at each step as a heat map; tokens per rank, dropped share and traffic of the last step.

    ``source`` says how the numbers were come by: token counts and bytes of a real run are *counted*.
    """

    _esm = bundle("experts.js")

    def __init__(self, experts: int, ranks: int, source: str = "counted") -> None:
        super().__init__()
        self.experts = experts
        self.ranks = ranks
        self.source = source
        self.clear()

    def clear(self, experts: int | None = None, ranks: int | None = None) -> None:
        """Forget every step, for a new run, perhaps of other ``experts`` or ``ranks``."""
        with self._drawing:
            self.experts, self.ranks = experts or self.experts, ranks or self.ranks
            self.steps = np.zeros(0)
            self.load = np.zeros((0, self.experts))  # [columns, experts], tokens
            self.dropped = np.zeros(0)  # [columns], share of the routed token copies
            self.rank_load = np.zeros(self.ranks)
            self.traffic = np.zeros((self.ranks, self.ranks))
            self._stride, self._pending = 1, 0
            self.paint()

    def push(
        self,
        step: int,
        load: Sequence[float],
        rank_load: Sequence[float],
        dropped: float = 0.0,
        traffic: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """One step: tokens per expert ``[experts]``, tokens per rank ``[ranks]``, dropped share, bytes sent ``[from, to]``.

        Any thread; the painter draws at most ten times a second.
        """
        tokens, ranks = np.asarray(load, dtype=float), np.asarray(rank_load, dtype=float)
        if tokens.shape != (self.experts,) or ranks.shape != (self.ranks,):
            raise ValueError(f"load is [{self.experts}] and rank_load [{self.ranks}], not {tokens.shape} and {ranks.shape}")
        with self._drawing:
            self.rank_load = ranks
            self.traffic = np.zeros((self.ranks, self.ranks)) if traffic is None else np.asarray(traffic, dtype=float)
            self._append(step, tokens, dropped)
        self.paint_soon()

    def _append(self, step: int, tokens: np.ndarray, dropped: float) -> None:
        """A column for each ``stride`` steps: the mean of them."""
        if self._pending % self._stride == 0:
            self.steps = np.append(self.steps, step)
            self.load = np.vstack((self.load, tokens))
            self.dropped = np.append(self.dropped, dropped)
            self._pending = 0
        else:
            share = 1 / (self._pending + 1)
            self.load[-1] += (tokens - self.load[-1]) * share
            self.dropped[-1] += (dropped - self.dropped[-1]) * share
        self._pending += 1
        if len(self.steps) > MOST_COLUMNS and self._pending == self._stride:
            self._halve()

    def _halve(self) -> None:
        even = len(self.steps) // 2 * 2
        self.steps = self.steps[:even:2]
        self.load = self.load[:even].reshape(-1, 2, self.experts).mean(axis=1)
        self.dropped = self.dropped[:even].reshape(-1, 2).mean(axis=1)
        self._stride *= 2
        self._pending = self._stride

    @property
    def imbalance(self) -> float:
        """The busiest expert's tokens over the mean, at the last step."""
        last = self.load[-1] if len(self.load) else np.zeros(1)
        return float(last.max() / last.mean()) if last.mean() else 0.0

    def is_empty(self) -> bool:
        return not len(self.steps)

    def _content(self) -> tuple[dict[str, Any], bytes]:
        header = {"experts": self.experts, "ranks": self.ranks, "columns": len(self.steps), "source": self.source, "scale": SCALE}
        return header, floats(self.steps, self.load, self.dropped, self.rank_load, self.traffic)

    def figure(self) -> Figure:
        return experts_figure(self.steps, self.load, self.dropped, self.rank_load, self.traffic, self.source)

    def table(self) -> Table:
        """Per rank at the last step: tokens, against the mean, bytes sent and received."""
        if self.is_empty():
            return Table.of(("rank",), [], "no step yet")
        mean = self.rank_load.mean() or 1.0
        slowest = int(self.rank_load.argmax())
        sent, received = self.traffic.sum(axis=1), self.traffic.sum(axis=0)
        rows = [
            (
                f"rank {r}" + (" (slowest)" if r == slowest else ""),
                number(self.rank_load[r], ""),
                f"{self.rank_load[r] / mean:.2f} x mean",
                number(sent[r], "B"),
                number(received[r], "B"),
            )
            for r in range(self.ranks)
        ]
        heads = ("rank", "tokens", "load", "bytes sent", "bytes received")
        busiest = int(self.load[-1].argmax())
        caption = (
            f"step {self.steps[-1]:.0f}: busiest expert {busiest} at {self.imbalance:.2f} x the mean, "
            f"{int((self.load[-1] == 0).sum())} of {self.experts} experts without a token, "
            f"dropped {number(float(self.dropped[-1]), 'share')} ({self.source})"
        )
        return Table.of(heads, rows, caption)

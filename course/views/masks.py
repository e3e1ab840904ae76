"""``MaskView``: the causal mask once for each rank, with the part that this rank computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from course.views.canvas_view import CanvasView
from course.views.esm import bundle
from course.views.kinds import BLUE
from course.views.labels import number
from course.views.still import INK, SOFT, new_figure
from course.views.table import Table

AHEAD, OTHERS, MINE = 0, 1, 2  # a pair that the mask hides; one that another rank computes; one that this rank computes
COLOURS = ("#f1f1f1", "#cfcfcf", BLUE)
CAPTION = "across: keys, down: queries; blue: computed by this rank; in %: its work (predicted), next to the busiest rank's"


class MaskView(CanvasView):
    """Squares of queries (down) by keys (across), one for each rank; ``show`` fills them."""

    _esm = bundle("masks.js")

    def __init__(self) -> None:
        super().__init__()
        self.masks = np.zeros((0, 0, 0), dtype=np.uint8)
        self.notes: list[str] = []
        self.work: list[int] = []

    def show(self, masks: np.ndarray, work: Sequence[int], notes: Sequence[str]) -> None:
        """``masks [ranks, size, size]`` of ``AHEAD``, ``OTHERS``, ``MINE``; the query-key pairs of each rank; a word for each."""
        with self._drawing:
            self.masks, self.work, self.notes = masks.astype(np.uint8), list(work), list(notes)
        self.paint()

    def _titles(self) -> list[str]:
        most = max(self.work, default=1)
        return [f"rank {rank}: {pairs / most * 100:.0f} %" for rank, pairs in enumerate(self.work)]

    def _content(self) -> tuple[dict[str, Any], bytes]:
        ranks, size, _ = self.masks.shape
        state = {"ranks": ranks, "size": size, "titles": self._titles(), "notes": self.notes, "said": str(self.table())}
        return {**state, "mine": BLUE, "caption": CAPTION}, self.masks.tobytes()

    def figure(self) -> Figure:
        ranks = len(self.work)
        rows = max(1, -(-ranks // 4))
        columns = max(1, -(-ranks // rows))  # four to a line at most, and about as many in each line
        figure = new_figure(2.35 * rows + 0.35)
        palette = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in COLOURS], dtype=np.uint8)
        for rank, title in enumerate(self._titles()):
            axes = figure.add_subplot(rows, columns, rank + 1)
            axes.imshow(palette[self.masks[rank]], interpolation="nearest")
            axes.set_title(title, fontsize=9, color=INK)
            axes.set_xlabel(self.notes[rank], fontsize=8, color=SOFT)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if rank % columns == 0:
                axes.set_ylabel("queries", fontsize=8, color=SOFT)
        figure.suptitle(CAPTION, fontsize=9, color=SOFT, x=0.02, ha="left")
        figure.subplots_adjust(left=0.05, right=0.98, top=1 - 0.55 / (2.35 * rows + 0.35), bottom=0.08, hspace=0.35)
        return figure

    def table(self) -> Table:
        total = sum(self.work) or 1
        rows = [
            (f"rank {rank}", f"{pairs:,}", number(pairs / total, "share"), self.notes[rank]) for rank, pairs in enumerate(self.work)
        ]
        return Table.of(("", "query-key pairs (predicted)", "share (predicted)", ""), rows, "who computes what")

    def is_empty(self) -> bool:
        return not self.work

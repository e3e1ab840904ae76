"""``MeshView``: the ranks as a grid, once for each axis that splits them; ranks of one colour talk to each other over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course.views.canvas_view import CanvasView
from course.views.esm import bundle
from course.views.kinds import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, WHITE, YELLOW
from course.views.still import INK, SOFT, new_figure
from course.views.table import Table

COLOURS = (SKY, ORANGE, GREEN, YELLOW, BLUE, VERMILION, PURPLE, GREY)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class MeshView(CanvasView):
    """``show(ranks, axes, notes)``: ``axes`` maps the name of an axis to its lines of ranks, ``notes`` say a word on each rank."""

    _esm = bundle("mesh.js")

    def __init__(self) -> None:
        super().__init__()
        self.ranks = 0
        self.axes: dict[str, list[tuple[int, ...]]] = {}
        self.what: dict[str, str] = {}
        self.notes: list[str] = []

    def show(
        self, ranks: int, axes: Mapping[str, Sequence[tuple[int, ...]]], what: Mapping[str, str], notes: Sequence[str]
    ) -> None:
        """``what[axis]`` says what the axis splits; ``notes[rank]`` what the rank holds."""
        with self._drawing:
            self.ranks, self.what, self.notes = ranks, dict(what), list(notes)
            self.axes = {name: [tuple(line) for line in lines] for name, lines in axes.items()}
        self.paint()

    @property
    def columns(self) -> int:
        """Ranks in a line of the grid: the innermost axes side by side."""
        return min(self.ranks, 4) or 1

    def _line_of(self, name: str) -> list[int]:
        """By rank, the number of its line along an axis."""
        return [next(i for i, line in enumerate(self.axes[name]) if rank in line) for rank in range(self.ranks)]

    def _titles(self) -> dict[str, str]:
        return {name: f"{name} {len(lines[0])}: {self.what.get(name, '')}" for name, lines in self.axes.items()}

    def _content(self) -> tuple[dict[str, Any], bytes]:
        titles = self._titles()
        panels = [{"title": titles[name], "lines": self._line_of(name)} for name in self.axes]
        inks = [WHITE if colour == BLUE else BLACK for colour in COLOURS]
        state = {"ranks": self.ranks, "columns": self.columns, "panels": panels, "colours": list(COLOURS), "inks": inks}
        return {**state, "letters": LETTERS, "caption": self._caption(), "said": str(self.table())}, b""

    def _caption(self) -> str:
        many = "each square a rank; ranks of one colour and letter talk to each other over that axis"
        return many if self.axes else "one rank: nothing is split"

    def figure(self) -> Figure:
        rows = -(-self.ranks // self.columns)
        height = 0.42 * rows + 0.7  # inches; below the grid 0.06, above it a title and a line
        figure = new_figure(height)
        titles, count = self._titles(), max(4, len(self.axes))
        for panel, name in enumerate(self.axes):
            axes = figure.add_axes((0.02 + panel * 0.97 / count, 0.06 / height, 0.92 / count, 0.42 * rows / height))
            axes.set_xlim(0, 4)
            axes.set_ylim(rows, 0)
            axes.set_axis_off()
            axes.set_title(titles[name], fontsize=9, color=INK, loc="left")
            for rank, line in enumerate(self._line_of(name)):
                y, x = divmod(rank, self.columns)
                colour = COLOURS[line % len(COLOURS)]
                axes.add_patch(Rectangle((x + 0.04, y + 0.05), 0.92, 0.9, facecolor=colour, linewidth=0))
                ink = WHITE if colour == BLUE else BLACK
                axes.text(x + 0.5, y + 0.5, f"{rank}{LETTERS[line % 26]}", ha="center", va="center", fontsize=9, color=ink)
        figure.text(0.02, 1 - 0.08 / height, self._caption(), fontsize=9, color=SOFT, va="top")
        return figure

    def table(self) -> Table:
        heads = ("", *(f"{name} line" for name in self.axes), "holds")
        letters = {name: [LETTERS[line % 26] for line in self._line_of(name)] for name in self.axes}
        rows = [(f"rank {rank}", *(letters[name][rank] for name in self.axes), self.notes[rank]) for rank in range(self.ranks)]
        return Table.of(heads, rows, "who talks to whom: ranks of one letter, over that axis")

    def is_empty(self) -> bool:
        return not self.ranks

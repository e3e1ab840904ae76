"""``StacksView``: for each rank (or axis) a stack of parts, predicted beside counted, under a limit where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.views.canvas_view import CanvasView
from course.views.esm import bundle
from course.views.kinds import BLUE, GREEN, ORANGE, SKY, VERMILION, Kind
from course.views.labels import number
from course.views.still import INK, SOFT, TRACK, new_figure
from course.views.table import Table

FILLS = ((SKY, ""), (ORANGE, "/"), (GREEN, "\\"), (BLUE, "x"), (VERMILION, "."))
Values = Mapping[str, Sequence[float]]  # part -> one number for each group


class StacksView(CanvasView):
    """``show(groups, parts, predicted, counted, limit)``: ``predicted["parameters"][i]`` is that part of group ``i``."""

    _esm = bundle("stacks.js")

    def __init__(self, title: str, unit: str = "B") -> None:
        super().__init__()
        self.title, self.unit = title, unit
        self.groups: list[str] = []
        self.limit: float | None = None
        self.limit_name = ""
        self.values: dict[str, dict[str, list[float]]] = {}

    def show(
        self,
        groups: Sequence[str] | None = None,
        predicted: Values | EllipsisType | None = ...,
        counted: Values | EllipsisType | None = ...,
        limit: float | EllipsisType | None = ...,
        limit_name: str = "cap",
    ) -> None:
        """Draw other numbers in place. ``None`` takes some away; what is not given stays."""
        with self._drawing:
            self.groups = self.groups if groups is None else list(groups)
            if not isinstance(limit, EllipsisType):
                self.limit, self.limit_name = limit, limit_name
            for source, values in (("predicted", predicted), ("counted", counted)):
                if not isinstance(values, EllipsisType):
                    self.values.pop(source, None)
                    if values is not None:
                        self.values[source] = {part: [float(v) for v in row] for part, row in values.items()}
        self.paint()

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(part for values in self.values.values() for part in values))

    @property
    def kinds(self) -> list[Kind]:
        return [Kind(part, *FILLS[i % len(FILLS)]) for i, part in enumerate(self.parts)]

    @property
    def top(self) -> float:
        """What the axis goes up to."""
        return 1.12 * max([self._total(source, i) for source in self.values for i in range(len(self.groups))] + [self.limit or 0.0])

    def _total(self, source: str, group: int) -> float:
        return sum(row[group] for row in self.values[source].values())

    def _content(self) -> tuple[dict[str, Any], bytes]:
        bars = [{"source": source, "rows": [values[part] for part in self.parts]} for source, values in self.values.items()]
        totals = [[number(self._total(source, i), self.unit) for i in range(len(self.groups))] for source in self.values]
        state: dict[str, Any] = {"title": self.title, "groups": self.groups, "kinds": [kind.state() for kind in self.kinds]}
        state |= {"bars": bars, "totals": totals, "top": self.top, "said": str(self.table())}
        if self.limit is not None:
            state |= {"limit": self.limit, "limitText": f"{self.limit_name} {number(self.limit, self.unit)}"}
        return state, b""

    def figure(self) -> Figure:
        figure = new_figure(0.85 + 0.34 * len(self.groups))
        axes = figure.add_axes((0.09, 0.06, 0.72, 1 - 0.5 / (0.85 + 0.34 * len(self.groups))))
        sources = list(self.values)
        for place, source in enumerate(sources):
            self._bars(axes, source, place, 0.8 / max(1, len(sources)))
        if self.limit is not None:
            axes.axvline(self.limit, color=INK, linewidth=1.2, linestyle=(0, (5, 3)))
            axes.text(self.limit, -0.62, f"{self.limit_name} {number(self.limit, self.unit)}", fontsize=8, color=INK, ha="center")
        axes.set_yticks(range(len(self.groups)), self.groups)
        axes.set_ylim(len(self.groups) - 0.4, -0.6)
        axes.set_xlim(0, self.top or 1)
        axes.set_xticks([])
        axes.tick_params(labelsize=8, colors=SOFT, length=0)
        axes.set_facecolor(TRACK)
        axes.spines[:].set_visible(False)
        words = self.title + ("; upper bar predicted, lower counted" if len(sources) > 1 else f" ({''.join(sources)})")
        figure.text(0.02, 0.985, words, fontsize=9, color=SOFT, va="top")
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.02))
        return figure

    def _bars(self, axes: Axes, source: str, place: int, height: float) -> None:
        base = [0.0] * len(self.groups)
        at = [i - 0.4 + height * (place + 0.5) for i in range(len(self.groups))]
        for kind in self.kinds:
            row = self.values[source][kind.label]
            label = kind.label if place == 0 else None
            pale = 0.55 if source == "predicted" and len(self.values) > 1 else 1.0
            drawn = axes.barh(at, row, height * 0.9, left=base, color=kind.fill, label=label, alpha=pale)
            for bar in drawn:
                bar.set(hatch=kind.hatch * 3, edgecolor="#00000055", linewidth=0)
            base = [b + v for b, v in zip(base, row, strict=True)]
        for y, total in zip(at, base, strict=True):
            axes.text(total, y, f" {number(total, self.unit)}", fontsize=7, color=INK, va="center")

    def table(self) -> Table:
        heads = ("", "how", *self.parts, "total")
        rows = []
        for i, group in enumerate(self.groups):
            for source, values in self.values.items():
                cells = [number(values[part][i], self.unit) for part in self.parts]
                rows.append((group, source, *cells, number(self._total(source, i), self.unit)))
        caption = self.title if self.limit is None else f"{self.title}; {self.limit_name} {number(self.limit, self.unit)}"
        return Table.of(heads, rows, caption)

    def is_empty(self) -> bool:
        return not self.values

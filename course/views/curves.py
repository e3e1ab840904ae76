"""``CurveView``: a few labelled lines or clouds of points that grow while ranks run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from course.views.canvas_view import CanvasView, floats
from course.views.curves_png import curves_figure
from course.views.esm import bundle
from course.views.kinds import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION
from course.views.labels import number
from course.views.table import Table
from minipar.trace import SOURCES

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, GREY)
DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4), (4, 6))
MARKS = ("o", "s", "^", "D", "v", "x")
MOST_POINTS = 4000  # of one series; beyond it, neighbours are merged


@dataclass
class Series:
    """One curve: a name, the word for its numbers, points in the order in which they came."""

    name: str
    source: str
    points: bool = False  # single points, not joined
    order: int = 0  # decides colour, dash and mark
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The name with the word for its numbers, once."""
        return self.name if self.name == self.source else f"{self.name} ({self.source})"

    def state(self) -> dict[str, Any]:
        n = self.order
        look = {"colour": COLOURS[n % 6], "dash": list(DASHES[n % 6]), "mark": MARKS[n % 6]}
        return {"name": self.name, "source": self.source, "label": self.label, "points": self.points, "count": len(self.x), **look}


class CurveView(CanvasView):
    """Curves on common axes. ``x`` and ``y`` name the axes; units are those of ``labels.number``: ``"s"``, ``"B"``, ``"share"``.

    ``log`` is ``""``, ``"x"``, ``"y"`` or ``"xy"``. ``push`` adds a point from any thread; the painter draws, at most ten times
    a second.
    """

    _esm = bundle("curves.js")

    def __init__(
        self, x: str, y: str, title: str = "", x_unit: str = "", y_unit: str = "", log: str = "", height: int = 260
    ) -> None:
        super().__init__()
        self.axes = {"x": x, "y": y, "title": title, "xUnit": x_unit, "yUnit": y_unit, "log": log, "height": height}
        self.series: dict[str, Series] = {}
        self.paint()

    def push(self, name: str, x: float, y: float, source: str = "measured", points: bool = False) -> None:
        """Add one point to the curve ``name``, which begins with its first point."""
        with self._drawing:
            series = self._series(name, source, points)
            series.x.append(float(x))
            series.y.append(float(y))
            if len(series.x) > MOST_POINTS:
                series.x, series.y = halved(series.x), halved(series.y)
        self.paint_soon()

    def show(self, name: str, x: Iterable[float], y: Iterable[float], source: str = "measured", points: bool = False) -> None:
        """Replace the whole curve ``name``, and draw at once."""
        with self._drawing:
            series = self._series(name, source, points)
            series.x, series.y = [float(v) for v in x], [float(v) for v in y]
            if len(series.x) != len(series.y):
                raise ValueError(f"{name}: {len(series.x)} values of x, {len(series.y)} of y")
            self.paint()

    def clear(self, *names: str) -> None:
        """Take away the curves named, or all of them."""
        with self._drawing:
            for name in names or tuple(self.series):
                self.series.pop(name, None)
            self.paint()

    def _series(self, name: str, source: str, points: bool) -> Series:
        if source not in SOURCES:
            raise ValueError(f"source is one of {', '.join(SOURCES)}, not {source!r}")
        if name not in self.series:
            taken = {s.order for s in self.series.values()}
            free = next(i for i in range(len(taken) + 1) if i not in taken)
            self.series[name] = Series(name, source, points, free)
        series = self.series[name]
        series.source, series.points = source, points
        return series

    def is_empty(self) -> bool:
        return not any(s.x for s in self.series.values())

    def _content(self) -> tuple[dict[str, Any], bytes]:
        series = list(self.series.values())
        return {**self.axes, "series": [s.state() for s in series]}, floats(*(part for s in series for part in (s.x, s.y)))

    def figure(self) -> Figure:
        return curves_figure(self.axes, [(s.state(), np.array(s.x), np.array(s.y)) for s in self.series.values()])

    def table(self) -> Table:
        """Per curve: how many points, the first, the last, the least and the most."""
        rows = []
        unit = str(self.axes["yUnit"])
        for s in self.series.values():
            if s.x:
                values = [number(v, unit) for v in (s.y[0], s.y[-1], min(s.y), max(s.y))]
                rows.append((s.label, str(len(s.x)), number(s.x[-1], str(self.axes["xUnit"])), *values))
        heads = ("curve", "points", f"last {self.axes['x']}", "first", "last", "least", "most")
        return Table.of(heads, rows, f"{self.axes['title'] or self.axes['y']} against {self.axes['x']}")


def halved(values: list[float]) -> list[float]:
    """Neighbours averaged, two by two; the last value stays as it is."""
    even = (len(values) - 1) // 2 * 2
    pairs = np.array(values[:even]).reshape(-1, 2).mean(axis=1).tolist()
    return [*pairs, *values[even:]]

"""Still charts for a page: bars and lines on plotly (to hover, zoom and switch off), with a PNG and a table beside it.

Plotly's own JupyterLab extension shows the PNG, and draws the chart itself as soon as the pointer is over it: from JSON, without a
network, and without the 5 MB that a ``FigureWidget`` ships. They are not for live pictures: ``CurveView`` is.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from course.views.curves import COLOURS
from course.views.curves import DASHES as STROKES
from course.views.curves_png import curves_figure
from course.views.labels import number
from course.views.still import INK, LINE, SOFT, new_figure, tick, to_png
from course.views.table import Table

PLOTLY = "application/vnd.plotly.v1+json"
CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True, "plotlyServerURL": ""}
HATCHES = ("", "////", "...", "\\\\\\\\", "xxxx", "----")
WIDE = 7.7  # inches: plotly's extension shows the PNG as large as it is, also beside JupyterLab's list of files
BELOW_AXIS_TITLE = -0.34  # of the height of the plot
SHAPES = ("", "/", ".", "\\", "x", "-")  # plotly's names for the same
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "x")


@dataclass(frozen=True)
class Curve:
    """One line, or cloud of points, of ``lines``; ``source`` is the word for its numbers."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    source: str = "predicted"
    points: bool = False


@dataclass(frozen=True)
class Chart:
    """What ``bars`` and ``lines`` return: displayed, it is interactive where plotly is, else a picture, else text."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    drawn: Figure
    text: Table

    def png(self) -> bytes:
        return to_png(self.drawn)

    def table(self) -> Table:
        return self.text

    def is_empty(self) -> bool:
        return not self.data

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        plotly = {"data": self.data, "layout": self.layout, "config": CONFIG}
        return {PLOTLY: plotly, "image/png": base64.b64encode(self.png()).decode(), "text/plain": str(self.text)}


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    unit: str = "",
    title: str = "",
    sources: Mapping[str, str] | None = None,
    stacked: bool = False,
    limit: float | None = None,
) -> Chart:
    """A bar for each of ``groups`` (ranks, layouts) and each series (``{"weights": [per group], ...}``), beside or on each other.

    ``sources[name]`` says how a series was come by (*predicted* unless told); ``limit`` draws a line across, such as a memory cap.
    """
    named = {_named(name, (sources or {}).get(name, "predicted")): [float(v) for v in values] for name, values in series.items()}
    for name, values in named.items():
        if len(values) != len(groups):
            raise ValueError(f"{name}: {len(values)} values for {len(groups)} groups")
    data = [_bar_trace(i, name, groups, values, unit) for i, (name, values) in enumerate(named.items())]
    layout = _layout(title, unit) | {"barmode": "stack" if stacked else "group"}
    if limit is not None:
        layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit, "line": {"dash": "dash"}}]
    rows = [(group, *(number(values[i], unit) for values in named.values())) for i, group in enumerate(groups)]
    drawn = _bars_figure(groups, named, unit, title, stacked, limit)
    return Chart(data, layout, drawn, Table.of(("", *named), rows, title))


def lines(curves: Sequence[Curve], x: str, y: str, title: str = "", x_unit: str = "", y_unit: str = "", log: str = "") -> Chart:
    """Curves on common axes, which are logarithmic where ``log`` names them (``"x"``, ``"y"``, ``"xy"``)."""
    data, drawn, rows = [], [], []
    for i, c in enumerate(curves):
        xs, ys = [float(v) for v in c.x], [float(v) for v in c.y]
        label = _named(c.name, c.source)
        look: dict[str, Any] = {"marker": {"symbol": SYMBOLS[i % 6], "size": 8}} if c.points else {"line": {"dash": DASHES[i % 6]}}
        look["mode"] = "markers" if c.points else "lines"
        data.append({"type": "scatter", "name": label, "x": xs, "y": ys, "legendrank": i, **look})
        data[-1].setdefault("marker", {})["color"] = COLOURS[i % 6]
        state = {"colour": COLOURS[i % 6], "dash": STROKES[i % 6], "mark": "os^Dvx"[i % 6], "points": c.points, "label": label}
        drawn.append((state, np.array(xs), np.array(ys)))
        rows.append((label, str(len(xs)), *(number(v, y_unit) for v in (ys[0], ys[-1], min(ys), max(ys)))) if ys else (label, "0"))
    axes = {"x": x, "y": y, "title": title, "xUnit": x_unit, "yUnit": y_unit, "log": log}
    layout = _layout(title or y, y_unit)
    layout["xaxis"] |= {"title": {"text": x}, "type": "log" if "x" in log else "linear", "ticksuffix": _suffix(x_unit)}
    layout["yaxis"] |= {"type": "log" if "y" in log else "linear", "title": {"text": y if title else ""}}
    layout["legend"]["y"] = BELOW_AXIS_TITLE
    heads = ("curve", "points", "first", "last", "least", "most")
    table = Table.of(heads, [r + ("",) * (6 - len(r)) for r in rows], title or y)
    return Chart(data, layout, curves_figure(axes, drawn, WIDE), table)


def _named(name: str, source: str) -> str:
    return name if name == source else f"{name} ({source})"


def _suffix(unit: str) -> str:
    return {"share": "", "": ""}.get(unit, unit)


def _layout(title: str, unit: str) -> dict[str, Any]:
    """Transparent, in a grey that reads on light and dark pages."""
    axis = {"gridcolor": "rgba(128,128,128,0.25)", "zeroline": False, "automargin": True}
    y = {**axis, "tickformat": ".0%"} if unit == "share" else {**axis, "ticksuffix": _suffix(unit), "exponentformat": "SI"}
    return {
        "title": {"text": title, "font": {"size": 13}, "x": 0.02},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "#7d7d7d", "size": 12},
        "margin": {"l": 60, "r": 20, "t": 36, "b": 40},
        "height": 320,
        "legend": {"orientation": "h", "y": -0.18, "traceorder": "normal"},
        "xaxis": {**axis, "exponentformat": "SI"},
        "yaxis": y,
    }


def _bar_trace(i: int, name: str, groups: Sequence[str], values: list[float], unit: str) -> dict[str, Any]:
    marker = {
        "color": COLOURS[i % 6],
        "pattern": {"shape": SHAPES[i % 6], "fgcolor": "rgba(0,0,0,0.4)", "size": 6, "fillmode": "overlay"},
    }
    texts = [number(v, unit) for v in values]
    return {
        "type": "bar",
        "name": name,
        "x": list(groups),
        "y": values,
        "marker": marker,
        "hovertext": texts,
        "hovertemplate": f"%{{x}}<br>{name}: %{{hovertext}}<extra></extra>",
    }


def _bars_figure(
    groups: Sequence[str], named: Mapping[str, list[float]], unit: str, title: str, stacked: bool, limit: float | None
) -> Figure:
    figure = new_figure(3.2, WIDE)
    axes = figure.add_axes((0.11, 0.13, 0.57, 0.76))
    base, at = np.zeros(len(groups)), np.arange(len(groups))
    width = 0.72 if stacked else 0.8 / max(1, len(named))
    for i, (name, values) in enumerate(named.items()):
        place = at if stacked else at - 0.4 + width * (i + 0.5)
        drawn = axes.bar(place, values, width * 0.94, bottom=base if stacked else 0, color=COLOURS[i % 6], label=name)
        for bar in drawn:
            bar.set(hatch=HATCHES[i % 6], edgecolor="#00000055", linewidth=0)
        base = base + values if stacked else base
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    axes.set_xticks(at, groups)
    tick(axes.yaxis, unit, [v for values in named.values() for v in values])
    axes.set_title(title, loc="left", fontsize=9, color=SOFT)
    axes.tick_params(labelsize=8, colors=SOFT, length=0)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure

"""Curves as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from course.views.still import LINE, SOFT, WIDTH, new_figure, tick


def curves_figure(
    axes: Mapping[str, Any], series: Sequence[tuple[dict[str, Any], np.ndarray, np.ndarray]], width: float = WIDTH
) -> Figure:
    """``axes`` holds names, units and ``log``; each series comes with its look, ``x`` and ``y``."""
    figure = new_figure(3.2, width)
    left = 0.99 / width  # inches: room for the ticks' text
    plot = figure.add_axes((left, 0.16, 0.97 - left, 0.72))
    for look, x, y in series:
        dash = (0, tuple(look["dash"])) if look["dash"] and not look["points"] else "-"
        plot.plot(
            x,
            y,
            color=look["colour"],
            linestyle="none" if look["points"] else dash,
            marker=look["mark"] if look["points"] else "",
            markersize=5,
            linewidth=1.6,
            label=look["label"],
        )
    if "x" in axes["log"]:
        plot.set_xscale("log")
    if "y" in axes["log"]:
        plot.set_yscale("log")
    for axis, unit, values in (
        (plot.xaxis, axes["xUnit"], [x for _, x, _ in series]),
        (plot.yaxis, axes["yUnit"], [y for *_, y in series]),
    ):
        tick(axis, unit, np.concatenate(values) if values else (), log=axis.axis_name in axes["log"])
    plot.set_xlabel(axes["x"], fontsize=9, color=SOFT, labelpad=2)
    if axes["title"]:
        plot.set_ylabel(axes["y"], fontsize=9, color=SOFT, labelpad=2)
    plot.set_title(axes["title"] or axes["y"], loc="left", fontsize=9, color=SOFT)
    plot.grid(color=LINE, linewidth=0.6)
    plot.set_axisbelow(True)
    plot.tick_params(labelsize=8, colors=SOFT, length=3)
    plot.spines[["top", "right"]].set_visible(False)
    plot.spines[["left", "bottom"]].set_color(LINE)
    if series:
        plot.legend(fontsize=8, frameon=False)
    return figure

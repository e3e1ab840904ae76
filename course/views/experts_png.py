"""The expert heat map, rank bars, dropped share and traffic matrix as a matplotlib figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.views.kinds import ORANGE, SKY, VERMILION
from course.views.labels import number
from course.views.still import INK, LINE, SOFT, new_figure


def experts_figure(
    steps: np.ndarray, load: np.ndarray, dropped: np.ndarray, rank_load: np.ndarray, traffic: np.ndarray, source: str
) -> Figure:
    """``load`` is ``[columns, experts]`` in tokens, ``traffic`` ``[from, to]`` in bytes."""
    figure = new_figure(5.2)
    heat = figure.add_axes((0.075, 0.60, 0.80, 0.33))
    drops = figure.add_axes((0.075, 0.42, 0.80, 0.09), sharex=heat)
    bars = figure.add_axes((0.075, 0.08, 0.40, 0.22))
    matrix = figure.add_axes((0.60, 0.05, 0.30, 0.25))
    if len(steps):
        _heat(figure, heat, steps, load, source)
        _drops(drops, steps, dropped, source)
        _bars(bars, rank_load, source)
        _matrix(matrix, traffic, source)
    return figure


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9, color=SOFT, pad=4)
    axes.tick_params(labelsize=8, colors=SOFT, length=2)
    axes.spines[:].set_visible(False)


def relative(load: np.ndarray) -> np.ndarray:
    """Each expert's tokens over the mean of its step; 1 is balanced."""
    mean = load.mean(axis=1, keepdims=True)
    return np.divide(load, mean, out=np.zeros_like(load), where=mean > 0)


def _heat(figure: Figure, axes: Axes, steps: np.ndarray, load: np.ndarray, source: str) -> None:
    values = relative(load)
    step = (steps[-1] - steps[0]) / max(1, len(steps) - 1) or 1
    extent = (steps[0] - step / 2, steps[-1] + step / 2, values.shape[1] - 0.5, -0.5)
    top = max(2.0, float(values.max()))
    image = axes.imshow(values.T, aspect="auto", cmap="cividis", vmin=0, vmax=top, extent=extent, interpolation="nearest")
    _plain(axes, f"tokens per expert at each step, times the mean ({source})")
    axes.set_ylabel("expert", fontsize=8, color=SOFT)
    axes.tick_params(labelbottom=False)
    bar = figure.colorbar(image, cax=figure.add_axes((0.89, 0.60, 0.014, 0.33)))
    bar.ax.tick_params(labelsize=8, colors=SOFT, length=2)
    bar.outline.set_visible(False)


def _drops(axes: Axes, steps: np.ndarray, dropped: np.ndarray, source: str) -> None:
    axes.fill_between(steps, dropped * 100, color=VERMILION, alpha=0.35, linewidth=0)
    axes.plot(steps, dropped * 100, color=VERMILION, linewidth=1.2)
    axes.set_ylim(0, max(5.0, float(dropped.max()) * 115))
    _plain(axes, f"dropped: {number(float(dropped[-1]), 'share')} at the last step ({source})")
    axes.set_ylabel("%", fontsize=8, color=SOFT)
    axes.set_xlabel("step", fontsize=8, color=SOFT, labelpad=1)
    axes.grid(axis="y", color=LINE, linewidth=0.6)


def _bars(axes: Axes, rank_load: np.ndarray, source: str) -> None:
    slowest, mean = int(rank_load.argmax()), float(rank_load.mean()) or 1.0
    bars = axes.barh(range(len(rank_load)), rank_load, color=[ORANGE if r == slowest else SKY for r in range(len(rank_load))])
    bars[slowest].set_hatch("////")
    bars[slowest].set_edgecolor("#00000055")
    bars[slowest].set_linewidth(0)
    axes.axvline(mean, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlim(0, float(rank_load.max()) * 1.32 or 1)
    axes.set_ylim(len(rank_load) - 0.4, -0.6)
    axes.set_yticks(range(len(rank_load)), [f"rank {r}" for r in range(len(rank_load))])
    for r, tokens in enumerate(rank_load):
        mark = f"  slowest, {tokens / mean:.2f} x mean" if r == slowest else ""
        axes.text(tokens, r, f" {tokens:,.0f}{mark}", va="center", fontsize=8, color=INK)
    _plain(axes, f"tokens per rank, last step ({source}; dashed: mean)")
    axes.set_xticks([])


def _matrix(axes: Axes, traffic: np.ndarray, source: str) -> None:
    top = float(traffic.max()) or 1.0
    axes.imshow(traffic, cmap="cividis", vmin=0, vmax=top, aspect="auto")
    ranks = len(traffic)
    if ranks <= 8:
        for i in range(ranks):
            for j in range(ranks):
                ink = "#111111" if traffic[i, j] > 0.55 * top else "#ffffff"
                text = number(traffic[i, j], "B") if traffic[i, j] else "0"
                axes.text(j, i, text, ha="center", va="center", fontsize=7, color=ink)
    _plain(axes, f"all-to-all bytes, row to column ({source})")
    every = 1 if ranks <= 16 else 4
    axes.set_xticks(range(0, ranks, every))
    axes.set_yticks(range(0, ranks, every))

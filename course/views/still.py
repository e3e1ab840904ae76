"""Finished pictures: matplotlib figures (never pyplot, which is not safe in a widget's thread) as small PNGs."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter
from PIL import Image

from course.views.labels import tick_texts

WIDTH, DPI = 9.0, 110  # inches, dots per inch
INK, SOFT, LINE, TRACK = "#1b1b1b", "#5c5c5c", "#d5d5d5", "#f1f1f1"


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty white figure of ``width`` x ``height`` inches."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


class TickText(Formatter):
    """The ticks of an axis as ``labels.tick_texts`` writes them; on a logarithmic axis each for itself."""

    def __init__(self, unit: str, log: bool = False) -> None:
        self._unit, self._log = unit, log

    def __call__(self, value: float, position: int | None = None) -> str:
        return tick_texts([float(value)], self._unit)[0]

    def format_ticks(self, values: Iterable[float]) -> list[str]:
        return [self(v) for v in values] if self._log else tick_texts([float(v) for v in values], self._unit)


def tick(axis: Axis, unit: str, values: Any = (), log: bool = False) -> None:
    """Round ticks with text in ``unit``; no half ones where all ``values`` are whole numbers."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if log:
        axis.set_major_locator(
            LogLocator(subs=(1.0,) if _decades(values) > 2.5 else (1.0, 3.0) if _decades(values) > 1 else (1.0, 2.0, 5.0))
        )
        axis.set_minor_formatter(NullFormatter())
    elif len(values) and (values == np.round(values)).all():
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axis.set_major_formatter(TickText(unit, log))


def _decades(values: np.ndarray) -> float:
    above = values[values > 0]
    return float(np.log10(above.max() / above.min())) if len(above) else 0.0


def to_png(figure: Figure, colours: int = 96) -> bytes:
    """The figure as a PNG with a palette of ``colours``, a third of the usual size, with no date or version in it."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    out = io.BytesIO()
    image.save(out, format="png", optimize=True)
    return out.getvalue()

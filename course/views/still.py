"""Finished pictures: matplotlib figures (never pyplot, which is not safe in a widget's thread) as small PNGs."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

WIDTH, DPI = 9.0, 110  # inches, dots per inch
INK, SOFT, LINE, TRACK = "#1b1b1b", "#5c5c5c", "#d5d5d5", "#f1f1f1"


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty white figure of ``width`` x ``height`` inches."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def to_png(figure: Figure, colours: int = 96) -> bytes:
    """The figure as a PNG with a palette of ``colours``, a third of the usual size, with no date or version in it."""
    raw = io.BytesIO()
    figure.savefig(raw, format="png", metadata={"Software": None})
    image = Image.open(raw).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    out = io.BytesIO()
    image.save(out, format="png", optimize=True)
    return out.getvalue()

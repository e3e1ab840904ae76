"""The picture of a prediction: three bars on one scale, or three lines of words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course.views.kinds import BLUE, GREEN, GREY
from course.views.still import INK, SOFT, new_figure, to_png

if TYPE_CHECKING:
    from course.predict import Prediction

_LOOKS = {"your guess": (GREY, ""), "theory": (BLUE, "//")}
_FOUND = (GREEN, "")
WIDTH = 7.0  # inches


def picture(p: Prediction) -> bytes:
    """A PNG of the guess, the theory and what the ranks showed, from the top."""
    rows = p.rows
    figure = new_figure(0.34 * len(rows) + 0.12, WIDTH)
    axes = figure.add_axes((0.14, 0.04, 0.62, 0.92))
    axes.set_axis_off()
    axes.set_ylim(len(rows) - 0.45, -0.55)
    numbers = [value for _, value, _ in rows if not isinstance(value, str)]
    most = max([abs(v) for v in numbers] + [1e-30])
    axes.set_xlim(0, most if numbers else 1)
    for y, (who, value, word) in enumerate(rows):
        fill, hatch = _LOOKS.get(who, _FOUND)
        axes.text(-0.02, y, who, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=9, color=INK)
        said = p.text(value) + (f" ({word})" if word else "")
        at = 0.0
        if not isinstance(value, str):
            axes.barh(y, max(0.0, value), height=0.62, color=fill, hatch=hatch, edgecolor="white", linewidth=0)
            at = max(0.0, value)
        ink = INK if word else SOFT
        axes.annotate(said, (at, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9, color=ink)
    return to_png(figure)

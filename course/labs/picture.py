"""A lab as one finished picture: its views below each other, and its numbers as drawn text."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from course.views.still import INK, LINE, SOFT, new_figure, to_png
from course.views.table import Table

CHARACTERS = 120  # of a line that surely fits into the picture's width


def table_png(table: Table, note: str = "") -> bytes:
    """The table as a PNG: first column to the left, the others to the right, the first line of ``note`` below."""
    lines = [table.heads, *table.rows]
    notes = textwrap.wrap(note.partition("\n")[0], CHARACTERS)
    rows = len(lines) + len(notes)
    height = 0.235 * (rows + 1) + 0.12
    figure = new_figure(height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_ylim(rows + 0.6, -1.0)
    axes.set_xlim(0, 1)
    axes.text(0.02, -0.4, table.caption, fontsize=9, color=SOFT, va="center")
    for y, line in enumerate(lines):
        colour = SOFT if y == 0 else INK
        axes.text(0.02, y + 0.6, line[0], fontsize=9, color=colour, va="center")
        for column, text in enumerate(line[1:], 1):
            x = 0.46 + 0.52 * column / (len(line) - 1)
            axes.text(x, y + 0.6, text, fontsize=9, color=colour, va="center", ha="right")
        axes.plot((0.02, 0.98), (y + 1.1, y + 1.1), color=LINE, linewidth=0.6)
    for y, words in enumerate(notes, len(lines)):
        axes.text(0.02, y + 0.7, words, fontsize=9, color=SOFT, va="center")
    return to_png(figure)


def stacked(pictures: Sequence[bytes]) -> bytes:
    """The PNGs one below the other."""
    from PIL import Image

    images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pictures]
    whole = Image.new("RGB", (max(i.width for i in images), sum(i.height for i in images)), "white")
    y = 0
    for image in images:
        whole.paste(image, (0, y))
        y += image.height
    out = io.BytesIO()
    whole.quantize(96, dither=Image.Dither.NONE).save(out, format="png", optimize=True)
    return out.getvalue()

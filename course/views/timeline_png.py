"""A timeline as a matplotlib figure, with the same rows, colours and hatches as in the browser."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from course.views.block import Block, span_text
from course.views.kinds import Kind, kind_of
from course.views.labels import number
from course.views.spans import BUSY, COUNT, CRITICAL, END, LABEL, ROW, STAGE, START
from course.views.still import INK, LINE, SOFT, TRACK, WIDTH, new_figure
from minipar.trace import COMPUTE

MOST_SPANS = 4000
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
MOST_TEXTS = 300
LEGEND_COLUMNS = 5
Strips = list[tuple[float, float]]  # (y, height) of each row


def timeline_figure(blocks: Sequence[Block], unit: str = "s") -> Figure:
    """The blocks one above the other on one time axis."""
    tops = [_strips(block) for block in blocks]
    heights = [bottom for _, bottom in tops]
    inches = sum(heights) * 0.19 + 0.3 * len(blocks) + 0.48 + 0.17 * _legend_lines(blocks)
    figure = new_figure(inches)
    end = max((b.makespan for b in blocks), default=0.0) or 1.0
    scale, name = next(((s, n) for s, n in _SCALES if end >= s), _SCALES[-1]) if unit == "s" else (1.0, unit)
    top = 1 - (0.08 + 0.17 * _legend_lines(blocks)) / inches
    kinds: list[Kind] = []
    for i, (block, (strips, bottom)) in enumerate(zip(blocks, tops, strict=True)):
        height = bottom * 0.19 / inches
        top -= 0.3 / inches
        axes = figure.add_axes((0.075, top - height, 0.84, height))
        _draw(axes, block, strips, bottom, scale, kinds)
        axes.set_xlim(0, end / scale)
        axes.set_title(_title(block, unit), loc="left", fontsize=9, color=SOFT, pad=4)
        if i < len(blocks) - 1:
            axes.tick_params(labelbottom=False, length=0)
        else:
            axes.set_xlabel(name, fontsize=9, color=SOFT, labelpad=1)
        top -= height
    _legend(figure, kinds, list(dict.fromkeys(remark for block in blocks for remark in block.remarks)))
    return figure


def _legend_lines(blocks: Sequence[Block]) -> int:
    entries = {kind_of(label.name, label.lane) for block in blocks for label in block.labels}
    remarks = {remark for block in blocks for remark in block.remarks}
    return -(-(len(entries) + len(remarks)) // LEGEND_COLUMNS)


def _title(block: Block, unit: str) -> str:
    if not len(block.spans):
        return f"{block.source}: {block.note or 'nothing yet'}"
    figures = (f"makespan {number(block.makespan, unit)}", block.idle_text, block.note)
    return f"{block.source}: {' · '.join(filter(None, figures))}"


def _strips(block: Block) -> tuple[Strips, float]:
    """``(y, height)`` of each row from the top, in units of text lines, and the height of all."""
    strips, y, rank = [], 0.0, 0
    for row in block.rows:
        if row.rank != rank:
            y, rank = y + 0.45, row.rank
        height = 1.35 if row.lane == COMPUTE else 0.7
        strips.append((y, height))
        y += height + 0.06
    return strips, y


def _draw(axes: Axes, block: Block, strips: Strips, bottom: float, scale: float, kinds: list[Kind]) -> None:
    axes.set_ylim(bottom, 0)
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(labelsize=8, colors=SOFT, length=3)
    for y, height in strips:
        axes.broken_barh([(0, block.makespan / scale)], (y, height), color=TRACK, zorder=0)
    _draw_ranks(axes, block, strips)
    spans = block.thinned(MOST_SPANS)
    kind_of_label = [kind_of(label.name, label.lane) for label in block.labels]
    kinds += [kind for kind in dict.fromkeys(kind_of_label) if kind not in kinds]
    kind_of_span = np.array([kinds.index(kind) for kind in kind_of_label], dtype=int)[spans[:, LABEL].astype(int)]
    for kind in np.unique(kind_of_span):
        _draw_kind(axes, block, spans[kind_of_span == kind], kinds[kind], strips, scale)
    critical = [_box(s, strips, scale) for s in spans[spans[:, CRITICAL] > 0]]
    axes.add_collection(PolyCollection(critical, facecolor="none", edgecolor=INK, linewidth=1.2, zorder=3), autolim=False)
    _draw_text(axes, block, spans, kind_of_label, strips, scale)


def _draw_ranks(axes: Axes, block: Block, strips: Strips) -> None:
    middles = []
    for rank in range(block.ranks):
        own = [strip for strip, row in zip(strips, block.rows, strict=True) if row.rank == rank]
        middles.append((own[0][0] + own[-1][0] + own[-1][1]) / 2)
    every = 1 if block.ranks <= 24 else 4
    axes.set_yticks(middles[::every], [f"rank {r}" for r in range(0, block.ranks, every)])
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=INK)
    if len(block.spans):
        for rank in range(0, block.ranks, every):
            text = f"idle {block.idle[rank] * 100:.0f} %"
            at = (1.01, middles[rank])
            axes.text(*at, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=SOFT)


def _draw_kind(axes: Axes, block: Block, spans: np.ndarray, kind: Kind, strips: Strips, scale: float) -> None:
    for shade, chosen in ((1.0, spans[:, STAGE] < block.ranks), (0.62, spans[:, STAGE] >= block.ranks)):  # later chunks are paler
        boxes = [_box(s, strips, scale) for s in spans[chosen]]
        if boxes:
            edge = 0.5 if len(boxes) < 800 else 0
            axes.add_collection(
                PolyCollection(boxes, facecolor=_mix(kind.fill, shade), edgecolor="white", linewidth=edge), autolim=False
            )
        if boxes and kind.hatch:  # as one path: matplotlib draws the pattern anew for each
            whole = Path.make_compound_path_from_polys(np.array(boxes))
            axes.add_artist(PathPatch(whole, facecolor="none", edgecolor="#00000055", linewidth=0, hatch=_HATCH[kind.hatch]))


_HATCH = {"": "", "/": "////", "\\": "\\\\\\\\", ".": "...", "-": "----", "|": "||||", "x": "xxxx"}


def _mix(colour: str, alpha: float) -> tuple[float, ...]:
    return tuple(alpha * c + 1 - alpha for c in to_rgb(colour))


def _box(span: np.ndarray, strips: Strips, scale: float) -> np.ndarray:
    """The corners ``[4, 2]`` of one span; a merged piece is as tall as it is busy."""
    y, height = strips[int(span[ROW])]
    x0, x1 = span[START] / scale, span[END] / scale
    full = min(1.0, span[BUSY] / (span[END] - span[START])) if span[COUNT] > 1 and span[END] > span[START] else 1.0
    top = y + height * (1 - full)
    return np.array([(x0, top), (x1, top), (x1, y + height), (x0, y + height)])


def _draw_text(axes: Axes, block: Block, spans: np.ndarray, kinds: list[Kind], strips: Strips, scale: float) -> None:
    """Names where they fit, on a plate of the fill's colour, so that the hatch does not cross letters."""
    per_point = (block.makespan / scale or 1) / (axes.get_position().width * WIDTH * 72)
    plates = []
    for s in spans[(spans[:, COUNT] == 1) & (spans[:, END] - spans[:, START] > 11 * per_point * scale)][:MOST_TEXTS]:
        text, kind = span_text(block, s), kinds[int(s[LABEL])]
        (y, height), middle, half = strips[int(s[ROW])], (s[START] + s[END]) / 2 / scale, len(text) * 2.4 * per_point
        if height < 1 or 2 * half > (s[END] - s[START]) / scale:
            continue
        if kind.hatch:
            plates.append((middle - half, y + 0.25, 2 * half, height - 0.5, kind.fill))
        axes.text(middle, y + height / 2, text, ha="center", va="center", fontsize=7.5, color=kind.ink, clip_on=True, zorder=4)
    boxes = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h, _ in plates]
    axes.add_collection(PolyCollection(boxes, facecolor=[p[4] for p in plates], zorder=3.5), autolim=False)


def _legend(figure: Figure, kinds: list[Kind], remarks: list[str]) -> None:
    patches = [Patch(facecolor=k.fill, edgecolor="#00000055", linewidth=0, hatch=_HATCH[k.hatch], label=k.label) for k in kinds]
    patches += [Patch(facecolor="none", label=remark) for remark in remarks]
    if patches:
        figure.legend(
            handles=patches,
            fontsize=8,
            frameon=False,
            handlelength=1.6,
            columnspacing=1.4,
            loc="upper left",
            bbox_to_anchor=(0.068, 1.0),
            ncols=min(LEGEND_COLUMNS, len(patches)),
        )

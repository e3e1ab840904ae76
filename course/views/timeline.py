"""``TimelineView``: what every rank did when, predicted above measured, in the browser, as a PNG and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from types import EllipsisType
from typing import Any

from matplotlib.figure import Figure

from course.views.aggregate import SpanAggregate
from course.views.block import Block, to_bytes
from course.views.canvas_view import CanvasView
from course.views.esm import bundle
from course.views.kinds import Kind
from course.views.labels import number
from course.views.table import Table
from course.views.timeline_png import timeline_figure
from minipar.trace import COMM, Timeline

MOST_SPANS = 8_000  # more are merged: the screen has fewer pixels, and zooming in brings the detail
MOST_LIVE_SPANS = 4_000


class TimelineView(CanvasView):
    """Lanes of computation and communication for each rank of one or two runs, on one time axis.

    ``predicted`` and ``measured`` are timelines (or ``None``); each is labelled with its own ``source``. ``unit`` is ``"s"``, or
    another word for timelines whose times are not seconds (``"slots"``). ``note`` stands beside the measured one ("on CPU").
    """

    _esm = bundle("timeline.js")

    def __init__(
        self, predicted: Timeline | None = None, measured: Timeline | None = None, unit: str = "s", note: str = ""
    ) -> None:
        super().__init__()
        self.unit = unit
        self.note = note
        self.predicted: Timeline | None = None
        self.measured: Timeline | None = None
        self._blocks: dict[str, Block] = {}
        self._live: SpanAggregate | None = None
        self._window: tuple[float, float] | None = None
        self.on_msg(self._hear)
        self.show(predicted, measured)

    def show(self, predicted: Timeline | EllipsisType | None = ..., measured: Timeline | EllipsisType | None = ...) -> None:
        """Draw other timelines in place. ``None`` takes one away; one that is not given stays."""
        with self._drawing:
            for place, timeline in (("predicted", predicted), ("measured", measured)):
                if isinstance(timeline, EllipsisType):
                    continue
                setattr(self, place, timeline)
                self._blocks.pop(place, None)
                if timeline is not None:
                    self._blocks[place] = Block.of(timeline, self.note if place == "measured" else "")
            if not isinstance(measured, EllipsisType):
                self._live = None
            self.paint()

    # ---- following a run (see course.live)

    def begin(self, run: Any) -> None:
        """The measured run starts anew."""
        with self._drawing:
            self.measured = None
            self._blocks.pop("measured", None)
            self._live = SpanAggregate(run.ranks, run.timeline.source)
        self.paint_soon()

    def feed(self, events: Iterable[Any]) -> None:
        """Take in the spans among the events of the run that goes on."""
        live = self._live
        batches = [event.payload for event in events if event.kind == "spans"]
        if live is not None and batches:
            live.add(span for batch in batches for span in batch)
            self.paint_soon()

    def end(self, run: Any) -> None:
        """The run is over: draw all of it."""
        self.show(measured=run.timeline)

    @property
    def blocks(self) -> list[Block]:
        """What is drawn, from the top."""
        with self._drawing:
            if self._live is not None:
                self._blocks["measured"] = self._live.block(self.note)
            return [self._blocks[place] for place in ("predicted", "measured") if place in self._blocks]

    def is_empty(self) -> bool:
        return not any(len(block.spans) for block in self.blocks)

    def _hear(self, _: Any, content: Any, buffers: Any) -> None:
        """The browser looks at another part of the time axis: send that part in detail. Perhaps in a thread beside the cell's."""
        window = content.get("window")
        if window is None:
            self._window = None
        elif len(window) == 2 and all(isinstance(t, int | float) for t in window) and window[0] < window[1]:
            self._window = (float(window[0]), float(window[1]))
        self.paint_soon()

    def _content(self) -> tuple[dict[str, Any], bytes]:
        kinds: list[Kind] = []
        blocks = self.blocks
        limit = MOST_LIVE_SPANS if self._live else MOST_SPANS
        thinned = [block.thinned(limit, self._window) for block in blocks]
        headers = [block.header(kinds, len(spans)) for block, spans in zip(blocks, thinned, strict=True)]
        header: dict[str, Any] = {"blocks": headers, "kinds": [kind.state() for kind in kinds], "unit": self.unit}
        header["remarks"] = list(dict.fromkeys(remark for block in blocks for remark in block.remarks))
        return header, b"".join(to_bytes(spans) for spans in thinned)

    def table(self) -> Table:
        """Per rank: work, communication that was not hidden, idle time, bytes sent, for each timeline shown."""
        rows = [row for t in (self.predicted, self.measured) if t is not None for row in _rows(t, self.unit)]
        heads = ("rank", "source", "work", "communication", "idle", "idle share", "bytes sent")
        return Table.of(heads, rows, self._caption())

    def _caption(self) -> str:
        parts = []
        for block in self.blocks:
            figures = (f"makespan {number(block.makespan, self.unit)}", block.idle_text)
            parts.append(f"{', '.join(filter(None, figures))} ({block.source})")
        return "; ".join(parts) or "no run yet"

    def figure(self) -> Figure:
        return timeline_figure(self.blocks, self.unit)


def _rows(timeline: Timeline, unit: str) -> list[tuple[str, ...]]:
    rows = []
    messages = any(s.lane == COMM for s in timeline.spans)  # a pipeline's actions alone say nothing of what was sent
    for rank in range(timeline.ranks):
        part = timeline.breakdown(rank)
        sent = sum(s.nbytes for s in timeline.of(rank, COMM))
        times = [number(t, unit) for t in (part.work, part.communication, part.idle)]
        share = number(part.idle / part.wall if part.wall else 0.0, "share")
        exact = timeline.source if timeline.source == "predicted" else "counted"  # no clock is needed for bytes
        nbytes = number(sent, "B", exact) if messages else "-"
        rows.append((f"rank {rank}", timeline.source, *times, share, nbytes))
    return rows

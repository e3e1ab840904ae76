"""``TimelineView``: what every rank did when, predicted above measured, in the browser, as a PNG and as a table."""

from __future__ import annotations

import threading
from types import EllipsisType
from typing import Any

import anywidget
import traitlets

from course.views.block import Block, to_bytes
from course.views.esm import HERE, bundle
from course.views.kinds import Kind
from course.views.labels import number
from course.views.mime import picture_bundle
from course.views.still import to_png
from course.views.table import Table
from course.views.timeline_png import timeline_figure
from minipar.trace import COMM, Timeline

MOST_SPANS = 20_000  # more are merged: the screen has fewer pixels
MOST_LIVE_SPANS = 4_000


class TimelineView(anywidget.AnyWidget):
    """Lanes of computation and communication for each rank of one or two runs, on one time axis.

    ``predicted`` and ``measured`` are timelines (or ``None``); each is labelled with its own ``source``. ``unit`` is ``"s"``, or
    another word for timelines whose times are not seconds (``"slots"``).
    """

    _esm = bundle("timeline.js")
    _css = (HERE / "view.css").read_text(encoding="utf-8")
    _header = traitlets.Dict().tag(sync=True)
    _frame = traitlets.Bytes().tag(sync=True)

    def __init__(
        self, predicted: Timeline | None = None, measured: Timeline | None = None, unit: str = "s", note: str = ""
    ) -> None:
        super().__init__()
        self.unit = unit
        self.note = note
        self.predicted: Timeline | None = None
        self.measured: Timeline | None = None
        self._blocks: dict[str, Block] = {}
        self._serial = 0
        self._drawing = threading.Lock()
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
            self._publish(MOST_SPANS)

    def show_live(self, block: Block) -> None:
        """Draw a run that is still going on as the measured one, from its aggregate."""
        with self._drawing:
            self._blocks["measured"] = block
            self._publish(MOST_LIVE_SPANS)

    @property
    def blocks(self) -> list[Block]:
        """What is drawn, from the top."""
        return [self._blocks[place] for place in ("predicted", "measured") if place in self._blocks]

    def _publish(self, limit: int) -> None:
        kinds: list[Kind] = []
        thinned = [block.thinned(limit) for block in self.blocks]
        headers = [block.header(kinds, len(spans)) for block, spans in zip(self.blocks, thinned, strict=True)]
        self._serial += 1
        header: dict[str, Any] = {
            "blocks": headers,
            "kinds": [kind.state() for kind in kinds],
            "unit": self.unit,
            "serial": self._serial,
        }
        with self.hold_sync():  # both in one message: the page never sees the text of one run with the spans of another
            self._header = header
            self._frame = b"".join(to_bytes(spans) for spans in thinned)

    def table(self) -> Table:
        """Per rank: work, communication that was not hidden, idle time, bytes sent, for each timeline shown."""
        rows = [row for t in (self.predicted, self.measured) if t is not None for row in _rows(t, self.unit)]
        heads = ("rank", "source", "work", "communication", "idle", "idle share", "bytes sent (counted)")
        return Table.of(heads, rows, self._caption())

    def _caption(self) -> str:
        parts = []
        for t in (self.predicted, self.measured):
            if t is not None:
                parts.append(f"makespan {number(t.makespan, self.unit)}, bubble {number(t.bubble, 'share')} ({t.source})")
        return "; ".join(parts) or "no run yet"

    def png(self) -> bytes:
        """The picture as a PNG."""
        return to_png(timeline_figure(self.blocks, self.unit))

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return picture_bundle(self, super()._repr_mimebundle_(**kwargs), empty=not any(len(b.spans) for b in self.blocks))


def _rows(timeline: Timeline, unit: str) -> list[tuple[str, ...]]:
    rows = []
    for rank in range(timeline.ranks):
        part = timeline.breakdown(rank)
        sent = sum(s.nbytes for s in timeline.of(rank, COMM))
        times = [number(t, unit) for t in (part.work, part.communication, part.idle)]
        share = number(part.idle / part.wall if part.wall else 0.0, "share")
        rows.append((f"rank {rank}", timeline.source, *times, share, number(sent, "B")))
    return rows

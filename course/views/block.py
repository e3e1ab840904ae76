"""One run as it is drawn: its rows, its spans as numbers, and the figures that stand in its title."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from course.views.kinds import Kind, kind_of
from course.views.labels import number
from course.views.spans import (
    BUSY,
    COLUMNS,
    COUNT,
    CRITICAL,
    END,
    LABEL,
    MICROBATCH,
    ROW,
    STAGE,
    START,
    Label,
    Packer,
    Row,
    drawing_order,
    thin_around,
)
from minipar.trace import COMPUTE, Timeline

BUBBLE, NOT_COMPUTING = "bubble", "not computing"


@dataclass(frozen=True)
class Block:
    """Spans ``[spans, COLUMNS]`` in drawing order; times count from the run's first start."""

    source: str  # predicted, measured, paced or counted
    ranks: int
    rows: tuple[Row, ...]
    labels: tuple[Label, ...]
    spans: np.ndarray
    makespan: float
    bubble: float  # the idle share of the ranks' own spans
    makespan_bubble: float
    idle: tuple[float, ...]  # per rank, the share of the makespan with neither work nor communication
    note: str = ""

    @classmethod
    def of(cls, timeline: Timeline, note: str = "") -> Block:
        """The block of a whole run."""
        packer = Packer()
        critical = frozenset(timeline.critical)
        spans = packer.numbers(sorted(timeline.spans, key=lambda s: s.start), critical)
        return cls.drawn(packer, spans, timeline.ranks, timeline.source, note)

    @classmethod
    def drawn(cls, packer: Packer, spans: np.ndarray, ranks: int, source: str, note: str = "") -> Block:
        """Put packed spans in drawing order and account for their time."""
        for rank in range(ranks):
            packer.open(Row(rank, COMPUTE, 0))  # a rank that did nothing has an empty track
        rows, labels, spans = list(packer.rows), tuple(packer.labels), spans.copy()
        place = np.array(drawing_order(rows, packer.receiving))
        ordered = tuple(row for _, row in sorted(zip(place.tolist(), rows, strict=True)))
        if len(spans):
            spans[:, ROW] = place[spans[:, ROW].astype(int)]
            spans[:, [START, END]] -= spans[:, START].min()
            spans = spans[np.lexsort((spans[:, START], spans[:, ROW]))]
        makespan, own, whole, idle = account(spans, ordered, ranks)
        return cls(source, ranks, ordered, labels, spans, makespan, own, whole, idle, note)

    def thinned(self, limit: int, window: tuple[float, float] | None = None) -> np.ndarray:
        """The spans to send or print: about ``limit`` at most, most of them inside ``window`` (seconds from the start)."""
        return thin_around(self.spans, limit, window)

    @property
    def idle_text(self) -> str:
        """For how much of the time ranks compute nothing, in words.

        That is a *bubble* where all there is to see is a pipeline's actions. Beside other work, or communication that has a lane
        of its own, a rank may have better to do than to wait for a microbatch: then it is *not computing*.
        """
        actions = all(label.lane == COMPUTE for label in self.labels) and (self.spans[:, MICROBATCH] >= 0).all()
        return idle_text(BUBBLE if actions else NOT_COMPUTING, self.bubble, self.makespan_bubble)

    @property
    def remarks(self) -> list[str]:
        """What else the picture uses, for the legend."""
        pale = ["pale: later chunks of a rank"] if (self.spans[:, STAGE] >= self.ranks).any() else []
        outlined = ["outlined: the critical path"] if (self.spans[:, CRITICAL] > 0).any() else []
        return pale + outlined

    def header(self, kinds: list[Kind], spans: int) -> dict[str, Any]:
        """The block without its numbers, for the browser. ``kinds`` grows by those that this block needs."""
        return {
            "source": self.source,
            "note": self.note,
            "ranks": self.ranks,
            "makespan": self.makespan,
            "idleText": self.idle_text,
            "idle": list(self.idle),
            "spans": spans,
            "merged": spans < len(self.spans),  # there is more to see from near
            "rows": [{"rank": r.rank, "lane": r.lane} for r in self.rows],
            "labels": [_label_state(label, kinds) for label in self.labels],
        }


def idle_text(word: str, own: float, whole: float) -> str:
    """A share of the ranks' own spans in words, and of the makespan where that is another number.

    Nothing where no rank computed.
    """
    if own >= 1:
        return ""
    texts = number(own, "share"), number(whole, "share")
    return f"{word} {texts[0]}" + (f" of own spans, {texts[1]} of the makespan" if texts[0] != texts[1] else "")


def _label_state(label: Label, kinds: list[Kind]) -> dict[str, Any]:
    kind = kind_of(label.name, label.lane)
    if kind not in kinds:
        kinds.append(kind)
    return {"name": label.name, "kind": kinds.index(kind), "axis": label.axis, "phase": label.phase, "peers": list(label.peers)}


def span_text(block: Block, span: np.ndarray) -> str:
    """What stands on a span: ``F3`` for a pipeline action, else its name."""
    name, microbatch = block.labels[int(span[LABEL])].name, int(span[MICROBATCH])
    return f"{name}{microbatch}" if microbatch >= 0 and len(name) == 1 else name


def to_bytes(spans: np.ndarray) -> bytes:
    """Little-endian float32, span after span, ``len(COLUMNS)`` numbers each."""
    return np.ascontiguousarray(spans.reshape(-1, len(COLUMNS)), dtype="<f4").tobytes()


def account(spans: np.ndarray, rows: tuple[Row, ...], ranks: int) -> tuple[float, float, float, tuple[float, ...]]:
    """Makespan in seconds, bubble, makespan bubble, and idle share per rank, as ``minipar.trace.Timeline`` defines them."""
    if not len(spans):
        return 0.0, 0.0, 0.0, (0.0,) * ranks
    rank_of = np.array([row.rank for row in rows])[spans[:, ROW].astype(int)]
    compute = np.array([row.lane == COMPUTE for row in rows])[spans[:, ROW].astype(int)]
    makespan = float(spans[:, END].max() - spans[:, START].min())
    mine = [spans[rank_of == rank] for rank in range(ranks)]
    own = max(float(s[:, END].max() - s[:, START].min()) for s in mine if len(s))
    busy = sum(_covered(spans[(rank_of == rank) & compute]) for rank in range(ranks))
    idle = tuple(1 - _covered(s) / makespan if makespan else 0.0 for s in mine)
    own_bubble, whole = (1 - busy / (ranks * wall) if wall else 0.0 for wall in (own, makespan))
    return makespan, own_bubble, whole, idle


def _covered(spans: np.ndarray) -> float:
    """Seconds in which at least one of the spans runs; a merged piece counts its busy seconds only."""
    if not len(spans):
        return 0.0
    spans = spans[np.argsort(spans[:, START], kind="stable")]
    reach = np.maximum.accumulate(spans[:, END])
    gaps = np.clip(spans[1:, START] - reach[:-1], 0, None).sum()
    merged = spans[spans[:, COUNT] > 1]
    hollow = (merged[:, END] - merged[:, START] - merged[:, BUSY]).sum()
    return float(max(0.0, reach[-1] - spans[0, START] - gaps - hollow))

"""Spans as numbers, ready for a picture: rows that never overlap, and fewer, wider pieces where a run has very many.

A *block* is one run as it is drawn: for each rank a compute row and one row per simultaneous transfer. Its spans are an
array of shape ``[spans, len(COLUMNS)]``; text (name, axis, phase, peers) lives once in a list of labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minipar.trace import COMPUTE, Span

COLUMNS = ("row", "start", "end", "label", "stage", "microbatch", "bytes", "count", "busy", "critical")
ROW, START, END, LABEL, STAGE, MICROBATCH, BYTES, COUNT, BUSY, CRITICAL = range(len(COLUMNS))


class Label(NamedTuple):
    """What a span is called, apart from its numbers."""

    name: str
    lane: str
    axis: str = ""
    phase: str = ""
    peers: tuple[int, ...] = ()


class Row(NamedTuple):
    """One horizontal strip of the picture."""

    rank: int
    lane: str  # "compute" or "comm"
    depth: int  # 0, or n for the n-th transfer at the same time


@dataclass(slots=True)
class Track:
    """The end of a row while it fills: its index, and its last span's end and name."""

    row: int
    end: float
    name: str


@dataclass
class Packer:
    """Turns spans into rows of numbers, in the order they come. Rows are opened as they are needed."""

    rows: list[Row] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    receiving: set[int] = field(default_factory=set)  # rows whose first span is a receive
    _row_of: dict[Row, int] = field(default_factory=dict)
    _tracks: dict[tuple[int, str], list[Track]] = field(default_factory=dict)  # by rank and lane
    _label_of: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def numbers(self, spans: Iterable[Span], critical: frozenset[Span] = frozenset()) -> np.ndarray:
        """The spans as an array ``[spans, columns]``. Spans of one row that come in order of time never overlap."""
        out = [self._line(s, s in critical if critical else False) for s in spans]
        return np.array(out, dtype=np.float64).reshape(-1, len(COLUMNS))

    def _line(self, s: Span, critical: bool) -> tuple[float, ...]:
        row, label = self._row(s), self._label(s)
        return (row, s.start, s.end, label, s.stage, s.microbatch, s.nbytes, 1, s.end - s.start, critical)

    def _row(self, s: Span) -> int:
        """A free row, if there is one: behind a span of the same name, so that sends stay beside sends."""
        tracks = self._tracks.setdefault((s.rank, s.lane), [])
        start = s.start + 1e-9 * abs(s.start)
        free = [track for track in tracks if track.end <= start]
        if not free:
            return self._begin(tracks, s)
        track = next((track for track in free if track.name == s.name), free[0])
        track.end, track.name = s.end, s.name
        return track.row

    def _begin(self, tracks: list[Track], s: Span) -> int:
        """One more row for this rank and lane, with ``s`` in it."""
        known = len(self.rows)
        row = self.open(Row(s.rank, s.lane, len(tracks)))
        if row == known and s.name == "recv":
            self.receiving.add(row)
        tracks.append(Track(row, s.end, s.name))
        return row

    def open(self, row: Row) -> int:
        """The index of ``row``, which is added if it is new."""
        if row not in self._row_of:
            self._row_of[row] = len(self.rows)
            self.rows.append(row)
        return self._row_of[row]

    def _label(self, s: Span) -> int:
        label = s.name, s.lane, s.axis, s.phase, s.peers
        if label not in self._label_of:
            self._label_of[label] = len(self.labels)
            self.labels.append(Label(*label))
        return self._label_of[label]


def drawing_order(rows: list[Row], receiving: set[int]) -> list[int]:
    """For each row its place from the top: by rank, compute first, then the transfers, those that begin by receiving at last."""

    def height(i: int) -> tuple[int, bool, str, bool, int]:
        return rows[i].rank, rows[i].lane != COMPUTE, rows[i].lane, i in receiving, rows[i].depth

    order = sorted(range(len(rows)), key=height)
    place = [0] * len(rows)
    for position, index in enumerate(order):
        place[index] = position
    return place


def thin(spans: np.ndarray, limit: int) -> np.ndarray:
    """At most about ``limit`` spans that look the same from afar: tiny neighbours in a row become one piece.

    A piece reaches from the first start to the last end of its members, takes its label from the longest, and adds up their
    count, bytes and busy seconds: ``busy / (end - start)`` says how full it is, so idle time is not painted over.
    """
    if len(spans) <= limit:
        return spans
    spans = spans[np.lexsort((spans[:, START], spans[:, ROW]))]
    begin, end = spans[:, START].min(), spans[:, END].max()
    columns = max(1, limit // max(1, len(np.unique(spans[:, ROW]))))
    return _merge(spans, begin, (end - begin) / columns or 1.0)


def thin_around(spans: np.ndarray, limit: int, window: tuple[float, float] | None) -> np.ndarray:
    """At most about ``limit`` spans, with most of the detail in the part of the run that is looked at, ``window`` (seconds)."""
    if window is None or len(spans) <= limit:
        return thin(spans, limit)
    before, after = spans[:, END] < window[0], spans[:, START] > window[1]
    shares = ((before, limit // 8), (~before & ~after, limit - limit // 4), (after & ~before, limit // 8))
    few = np.vstack([thin(spans[chosen], share) for chosen, share in shares])
    return few[np.lexsort((few[:, START], few[:, ROW]))]


def _merge(spans: np.ndarray, begin: float, width: float) -> np.ndarray:
    """Join spans shorter than ``width`` that start in the same row and the same column of that width."""
    column = np.floor((spans[:, START] - begin) / width)
    tiny = spans[:, END] - spans[:, START] < width
    same = (spans[1:, ROW] == spans[:-1, ROW]) & (column[1:] == column[:-1]) & tiny[1:] & tiny[:-1]
    first = np.flatnonzero(np.concatenate(([True], ~same)))
    group = np.cumsum(np.concatenate(([True], ~same))) - 1
    longest = np.lexsort((-spans[:, BUSY], group))[first]  # sorted by group, then longest first
    out = spans[longest].copy()
    out[:, START] = spans[first, START]
    out[:, END] = np.maximum.reduceat(spans[:, END], first)
    for total in (BYTES, COUNT, BUSY):
        out[:, total] = np.add.reduceat(spans[:, total], first)
    out[:, CRITICAL] = np.maximum.reduceat(spans[:, CRITICAL], first)
    return out

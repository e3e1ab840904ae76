"""Stretches of time: put together where they overlap, added up, laid out in rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipar.trace import Span


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The intervals with overlaps merged; they must come in order of their start."""
    merged: list[tuple[float, float]] = []
    for start, end in intervals:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def covered(intervals: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)


def pack(spans: list[Span]) -> list[list[Span]]:
    """Spread spans over as few rows as it takes for none to overlap: each goes to the first row that is free."""
    rows: list[list[Span]] = []
    for span in spans:
        row = next((row for row in rows if row[-1].end <= span.start), None)
        if row is None:
            rows.append([span])
        else:
            row.append(span)
    return rows

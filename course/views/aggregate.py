"""The spans of a run that is still going on, kept small: what a picture needs, however long the run."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from course.views.block import Block
from course.views.spans import COLUMNS, Packer, thin
from minipar.trace import Span

KEEP = 40_000  # spans; older neighbours are merged beyond twice this


class SpanAggregate:
    """Takes spans in any thread and gives the block to draw in another.

    Memory and drawing time are bounded: beyond ``2 * keep`` spans, tiny neighbours are merged into pieces that keep their
    count, bytes and busy seconds. The whole run stays with the run itself; this is only its picture.
    """

    def __init__(self, ranks: int, source: str = "measured", keep: int = KEEP) -> None:
        self.ranks = ranks
        self.source = source
        self.keep = keep
        self.seen = 0
        self._packer = Packer()
        self._parts: list[np.ndarray] = []
        self._lock = threading.Lock()

    def add(self, spans: Iterable[Span]) -> None:
        """Take in spans, each rank's in the order in which they ended."""
        with self._lock:
            part = self._packer.numbers(spans)
            self.seen += len(part)
            self._parts.append(part)
            if sum(map(len, self._parts)) > 2 * self.keep:
                self._parts = [thin(np.vstack(self._parts), self.keep)]

    def block(self, note: str = "") -> Block:
        """The run so far."""
        with self._lock:
            self._parts = [np.vstack(self._parts) if self._parts else np.zeros((0, len(COLUMNS)))]
            return Block.drawn(self._packer, self._parts[0], self.ranks, self.source, note)

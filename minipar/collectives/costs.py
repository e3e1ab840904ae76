"""What an all-reduce costs: closed forms, and a predicted timeline message by message.

A message takes ``latency + bytes / bandwidth``, and a link serves one message at a time in each direction (Hockney's model, as in
Thakur, Rabenseifner and Gropp 2005). Adding up is not counted: a processor adds faster than a network delivers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

from minipar.collectives.patterns import Pattern, pattern
from minipar.collectives.segmented_ring import SEGMENT_BYTES, segments_of
from minipar.hardware import Cluster, Link, cluster
from minipar.trace import COMM, Span, Timeline


@dataclass(frozen=True)
class Formula:
    """``seconds = messages(n) * latency + share(n) * S / bandwidth`` for S bytes on n equal links."""

    messages: Callable[[int], int]  # one after the other, on the busiest rank
    share: Callable[[int], float]  # multiples of S that pass through the busiest link, one after the other
    sent: Callable[[int], float]  # multiples of S that the busiest rank sends
    text: str

    def seconds(self, n: int, nbytes: float, link: Link, segments: int = 1) -> float:
        """``segments``: into how many each message is cut."""
        return self.messages(n) * segments * link.latency + self.share(n) * nbytes / link.bandwidth


def _levels(n: int) -> int:
    return ceil(log2(n))


def _optimal(n: int) -> float:
    """The least that any algorithm sends."""
    return 2 * (n - 1) / n


_RING = Formula(lambda n: 2 * (n - 1), _optimal, _optimal, "2 (n-1) (latency + S / (n bandwidth))")

FORMULAS: dict[str, Formula] = {
    "naive": Formula(lambda n: 2 * (n - 1), lambda n: 2 * (n - 1), lambda n: n - 1, "2 (n-1) (latency + S / bandwidth)"),
    "tree": Formula(lambda n: 2 * _levels(n), lambda n: 2 * _levels(n), _levels, "2 log2(n) (latency + S / bandwidth)"),
    "recursive doubling": Formula(_levels, _levels, _levels, "log2(n) (latency + S / bandwidth)"),
    "recursive halving": Formula(lambda n: 2 * _levels(n), _optimal, _optimal, "2 log2(n) latency + 2 (n-1)/n S / bandwidth"),
    "ring": _RING,
    "segmented ring": _RING,
}


def seconds(algorithm: str, n: int, nbytes: float, link: Link, segment_bytes: int = SEGMENT_BYTES) -> float:
    """The closed form of ``algorithm`` on ``n`` ranks joined by equal links, for a tensor of ``nbytes``.

    Exact where the tensor divides by n, and for the recursive algorithms where n is a power of two; ``predict`` is exact for all.
    """
    segments = segments_of(ceil(nbytes / n), segment_bytes) if algorithm == "segmented ring" else 1
    return FORMULAS[algorithm].seconds(n, nbytes, link, segments)


def predict(
    algorithm: str,
    n: int,
    elements: int,
    hardware: str | Cluster,
    itemsize: int = 4,
    segment_bytes: int = SEGMENT_BYTES,
) -> Timeline:
    """The timeline of an all-reduce of ``elements`` numbers of ``itemsize`` bytes on ``n`` ranks of ``hardware``."""
    return simulate(pattern(algorithm, n, elements, itemsize, segment_bytes), cluster(hardware))


def simulate(what: Pattern, hardware: Cluster) -> Timeline:
    """Let every message start as soon as its sender is ready and the sender's link is free, and arrive when the receiver's is."""
    out_free: dict[tuple[int, Link], float] = defaultdict(float)
    in_free: dict[tuple[int, Link], float] = defaultdict(float)
    done = [[0.0] * what.n]  # done[k][rank]: when its messages of the first k steps were done
    spans: list[Span] = []
    for step, messages in enumerate(what.by_step()):
        ready, ends = done[what.waits_for(step)], list(done[-1])
        for _, source, to, nbytes in messages:
            link = hardware.link((source, to))
            start = max(ready[source], out_free[source, link])
            arrives = max(start, in_free[to, link])
            sent = out_free[source, link] = start + link.seconds(nbytes)
            arrived = in_free[to, link] = arrives + link.seconds(nbytes)
            ends[source], ends[to] = max(ends[source], sent), max(ends[to], arrived)
            spans.append(Span(source, COMM, "send", start, sent, "world", nbytes, (to,)))
            spans.append(Span(to, COMM, "recv", arrives, arrived, "world", 0, (source,)))
        done.append(ends)
    return Timeline(spans, what.n, "predicted")


def bytes_per_link(timeline: Timeline) -> dict[tuple[int, int], float]:
    """Bytes sent from each rank to each other, ``{(source, to): bytes}``, in a predicted or a measured run."""
    total: dict[tuple[int, int], float] = defaultdict(float)
    for span in timeline.spans:
        if span.name == "send":
            total[span.rank, span.peers[0]] += span.nbytes
    return dict(total)

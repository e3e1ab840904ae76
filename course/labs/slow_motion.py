"""Fast hardware in slow motion: paced ranks run a model whose every flop and byte takes ``factor`` times as long.

A laptop's processes cannot wait for 3 microseconds with any precision, but for 30 milliseconds they can. The picture is then
shown in the modelled hardware's own time, divided by the factor again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from minipar.hardware import Cluster, Link
from minipar.trace import Span, Timeline

Keep = Callable[[Span], bool]


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """``cluster`` with every duration ``factor`` times as long."""

    def link(x: Link) -> Link:
        return replace(x, latency=x.latency * factor, bandwidth=x.bandwidth / factor)

    device = cluster.device
    slow = replace(device, peak_flops=device.peak_flops / factor, memory_bandwidth=device.memory_bandwidth / factor)
    return replace(cluster, device=slow, inside=link(cluster.inside), between=link(cluster.between))


def restored(timeline: Timeline, factor: float, keep: Keep, hardware: Cluster | None) -> Timeline:
    """A run of slowed ranks in the modelled hardware's own time, with the spans that ``keep`` allows."""
    source = timeline.source if hardware is None else "paced"
    return Timeline(_restored(timeline.spans, factor, keep), timeline.ranks, source)


def _restored(spans: Iterable[Span], factor: float, keep: Keep) -> list[Span]:
    return [s._replace(start=s.start / factor, end=s.end / factor) for s in spans if keep(s)]


class Restored:
    """Hands a run of slowed ranks on to a view, in the modelled hardware's own time (see ``course.live``)."""

    def __init__(self, view: Any, factor: float, keep: Keep, hardware: Cluster | None) -> None:
        self._view, self._factor, self._keep, self._hardware = view, factor, keep, hardware

    def begin(self, run: Any) -> None:
        self._view.begin(_Run(run, self))

    def feed(self, events: list[Any]) -> None:
        self._view.feed([self._event(event) for event in events])

    def end(self, run: Any) -> None:
        self._view.end(_Run(run, self))

    def timeline(self, run: Any) -> Timeline:
        return restored(run.timeline, self._factor, self._keep, self._hardware)

    def _event(self, event: Any) -> Any:
        if event.kind != "spans":
            return event
        return event._replace(payload=_restored(event.payload, self._factor, self._keep))


class _Run:
    """As much of a run as a view looks at."""

    def __init__(self, run: Any, scale: Restored) -> None:
        self.ranks = run.ranks
        self.timeline = scale.timeline(run)

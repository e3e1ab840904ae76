"""Lesson 1: how long an all-reduce takes, and who sends how much, by algorithm, size, ranks and link."""

from __future__ import annotations

from typing import Any

import numpy as np

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider, Steps
from course.labs.go import Go
from course.labs.links import link_menu, modelled, pacing_of, said
from course.labs.work import all_reduce_once
from course.views.canvas_view import CanvasView
from course.views.curves import CurveView
from course.views.timeline import TimelineView
from minipar.collectives import ALL_REDUCE, costs
from minipar.hardware import Link
from minipar.trace import Timeline

SHOWN, SHOWN_SMALL = 1.0, 0.4  # seconds that a paced run lasts on the learner's clock: of the whole size, of a part
PARTS = (1 / 64, 1 / 16, 1 / 4, 1 / 2)  # of the size, for the line through the times


class CollectivesLab(Lab):
    title = "All-reduce"

    def controls(self) -> dict[str, Control]:
        return {
            "ranks": Slider("ranks", 2, 8, 4),
            "mb": Steps("MB", (0.001, 0.01, 0.1, 1.0, 4.0, 16.0), 4.0, "size of the tensor on each rank, in 10^6 bytes"),
            "algorithm": Choice("algorithm", list(ALL_REDUCE), "ring"),
            "link": link_menu("two-nodes-100gbe"),
        }

    def make_views(self) -> list[CanvasView]:
        self.timeline = TimelineView()
        self.curve = CurveView("bytes", "time", "time by size", x_unit="B", y_unit="s", height=220)
        return [self.timeline, self.curve]

    def refuse(self, v: Settings) -> str | None:
        if v.algorithm.startswith("recursive") and v.ranks & (v.ranks - 1):
            return f"{v.algorithm} pairs ranks off by powers of two, and {v.ranks} is none: take 2, 4 or 8, or another algorithm."
        return None

    def predict(self, v: Settings) -> None:
        expected = _expected(v, v.mb)
        self.timeline.show(predicted=expected, measured=None)
        sizes = [v.mb * 1e6 * part for part in (*PARTS, 1)]
        self.curve.clear()
        times = [_expected(v, size / 1e6).makespan for size in sizes]
        self.curve.show("theory", sizes, times, "predicted")
        self.figures.predict("time", expected.makespan, "s")
        self.figures.predict("sent by the busiest rank", max(_sent(expected)), "B")
        self.figures.predict("over the busiest link", max(costs.bytes_per_link(expected).values()), "B")
        if model := _one_link(v.link, v.ranks):
            self.figures.predict("one message: latency", model.latency, "s")
            self.figures.predict("one message: bandwidth", model.bandwidth, "B/s")

    def measure(self, go: Go, v: Settings) -> str:
        def run(size: float, shown: float, **options: Any) -> tuple[Timeline, list[bool], float]:
            pacing = pacing_of(v.link, _expected(v, size).makespan, shown)
            return *go(v.ranks, all_reduce_once, v.algorithm, _elements(size), **pacing, **options), pacing["factor"]

        seen, right, factor = run(v.mb, SHOWN, live=[self.timeline])
        self.figures.find("time", seen.makespan, "s", seen.source)
        self.figures.find("sent by the busiest rank", max(_sent(seen)), "B", "counted")
        self.figures.find("over the busiest link", max(costs.bytes_per_link(seen).values()), "B", "counted")
        points = [(v.mb * 1e6, seen.makespan)]
        for part in PARTS:
            smaller, _, _ = run(v.mb * part, SHOWN_SMALL)
            points.append((v.mb * 1e6 * part, smaller.makespan))
            sizes, times = zip(*points, strict=True)
            self.curve.show("these ranks", sizes, times, seen.source, points=True)
        if _one_link(v.link, v.ranks):
            self._fit(points, v, seen.source)
        return said(v.link, factor) + ("" if all(right) else " The sum is WRONG.")

    def _fit(self, points: list[tuple[float, float]], v: Settings, source: str) -> None:
        """A straight line through the times; its start and slope give one message's latency and bandwidth."""
        sizes, times = np.array(points).T
        slope, start = np.polyfit(sizes, times, 1, w=1 / times)
        formula = costs.FORMULAS[v.algorithm]
        self.curve.show("fit", [0, sizes.max()], [start, start + slope * sizes.max()], source)
        self.figures.find("one message: latency", max(start, 0.0) / formula.messages(v.ranks), "s", source)
        if slope * sizes.max() > 0.2 * times.max():
            self.figures.find("one message: bandwidth", formula.share(v.ranks) / slope, "B/s", source)
        else:
            self.figures.find("one message: bandwidth", "hidden by latency", source=source)


def _expected(v: Settings, mb: float) -> Timeline:
    return costs.predict(v.algorithm, v.ranks, _elements(mb), modelled(v.link))


def _one_link(link: str, ranks: int) -> Link | None:
    """The link, where all pairs of ranks have the same: a straight line then fits."""
    cluster = modelled(link)
    return cluster.link(range(ranks)) if cluster.inside == cluster.between or ranks <= cluster.ranks_per_node else None


def _elements(mb: float) -> int:
    return max(1, round(mb * 1e6 / 4))


def _sent(timeline: Timeline) -> list[float]:
    return [sum(s.nbytes for s in timeline.of(rank)) for rank in range(timeline.ranks)]

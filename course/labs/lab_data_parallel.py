"""Lesson 4: gradients leave in buckets while backward runs; how much of the communication does that hide?"""

from __future__ import annotations

from course.labs.base import Lab, Settings
from course.labs.controls import Control, Slider, Steps
from course.labs.go import Go
from course.labs.links import link_menu, modelled, pacing_of, said
from course.labs.work import LAYER_BYTES, data_parallel_step, forward_flops
from course.views.canvas_view import CanvasView
from course.views.timeline import TimelineView
from minipar.data_parallel import predicted
from minipar.trace import COMM, Timeline

SHOWN = 1.5  # seconds that a paced run lasts on the learner's clock


class DataParallelLab(Lab):
    title = "Buckets and overlap"

    def controls(self) -> dict[str, Control]:
        return {
            "bucket": Steps("bucket MB", (1, 2, 3, 4, 8, 16), 2, "a bucket leaves once it holds this much gradient"),
            "layers": Slider("layers", 2, 16, 8),
            "ranks": Slider("ranks", 2, 8, 4),
            "tokens": Steps("tokens", (1024, 2048, 4096, 8192, 16384, 32768), 8192, "tokens that each rank works on in one step"),
            "link": link_menu("a100-nvlink", measured=False),
        }

    def make_views(self) -> list[CanvasView]:
        self.timeline = TimelineView()
        return [self.timeline]

    def predict(self, v: Settings) -> None:
        expected = _expected(v)
        self.timeline.show(predicted=expected, measured=None)
        self.figures.predict("step", expected.makespan, "s")
        self.figures.predict("communication in all", _communication(expected), "s")
        self.figures.predict("of it hidden behind backward", expected.overlap(0), "share")
        self.figures.predict("all-reduces", len(expected.of(0, COMM)))
        self.figures.predict("sent by each rank", sum(s.nbytes for s in expected.of(0, COMM)), "B")

    def measure(self, go: Go, v: Settings) -> str:
        pacing = pacing_of(v.link, _expected(v).makespan, SHOWN)
        seen, _ = go(v.ranks, data_parallel_step, v.layers, v.bucket * 1e6, v.tokens, live=[self.timeline], **pacing)
        self.figures.find("step", seen.makespan, "s", seen.source)
        self.figures.find("communication in all", _communication(seen), "s", seen.source)
        self.figures.find("of it hidden behind backward", seen.overlap(0), "share", seen.source)
        self.figures.find("all-reduces", len(seen.of(0, COMM)), source="counted")
        self.figures.find("sent by each rank", sum(s.nbytes for s in seen.of(0, COMM)), "B", "counted")
        return said(v.link, pacing["factor"])


def _expected(v: Settings) -> Timeline:
    cluster = modelled(v.link)
    forward = cluster.device.seconds(forward_flops(v.tokens))
    per_layer = ([forward] * v.layers, [2 * forward] * v.layers, [LAYER_BYTES] * v.layers)
    return predicted.timeline(*per_layer, bucket_bytes=v.bucket * 1e6, ranks=v.ranks, hardware=cluster)


def _communication(timeline: Timeline) -> float:
    return sum(s.seconds for s in timeline.of(0, COMM))

"""What is predicted of a step of ``blend`` against the step itself: bytes to the byte, memory and time within five percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from course.labs.work_blend import Seen
from minipar import GPTConfig
from minipar.hardware import Cluster, Device, Link
from minipar.planner import Job, live_memory, predict_step
from minipar.planner.traffic import bytes_by_axis, rank_bytes
from minipar.trace import COMM
from tests.planner.on_ranks import steps

CONFIG = GPTConfig(layers=4, width=32, heads=4, seq=32)
DEVICE = Device("small", 1e9, 1e9, 1e9, efficiency=1.0)
FAST, SLOW = Link("inside", 20e-6, 20e6), Link("between", 200e-6, 5e6)
ONE_NODE = Cluster("one node", DEVICE, FAST, FAST)
TWO_NODES = Cluster("two nodes", DEVICE, FAST, SLOW, ranks_per_node=2)

LAYOUTS = {
    "dp4": (Job(CONFIG, dp=4, microbatches=2), ONE_NODE),
    "dp4, small buckets": (Job(CONFIG, dp=4, bucket_bytes=20_000), TWO_NODES),
    "tp4": (Job(CONFIG, tp=4), ONE_NODE),
    "dp2 x tp2, by sequence": (Job(CONFIG, dp=2, tp=2, sequence_parallel=True), TWO_NODES),
    "cp4, zigzag": (Job(CONFIG, rows=4, cp=4), TWO_NODES),
    "dp2 x cp2, ulysses": (Job(CONFIG, dp=2, cp=2, context="ulysses"), ONE_NODE),
    "pp4": (Job(CONFIG, pp=4, microbatches=8), TWO_NODES),
    "pp2 x tp2": (Job(CONFIG, pp=2, tp=2, microbatches=4), TWO_NODES),
    "pp2 x cp2, zb-h1, ring": (Job(CONFIG, pp=2, cp=2, microbatches=4, schedule="zb-h1", context="ring"), ONE_NODE),
    "dp2 x pp2, gpipe, tied": (
        Job(replace(CONFIG, tied=True), rows=9, dp=2, pp=2, microbatches=2, schedule="gpipe"), TWO_NODES
    ),
    "pp2 x tp2, interleaved, by sequence": (
        Job(CONFIG, pp=2, tp=2, microbatches=4, schedule="interleaved", sequence_parallel=True), ONE_NODE
    ),
}  # fmt: skip
NAMES = pytest.mark.parametrize("name", LAYOUTS)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Seen]]:
    """What every rank showed of each layout: run once, looked at by all tests."""
    return {}


@pytest.fixture
def run(ranks: Callable[[int], Any], seen: dict[str, list[Seen]]) -> Callable[[str], list[Seen]]:
    def found(name: str) -> list[Seen]:
        if not seen:
            by_rank = ranks(4).run(steps, list(LAYOUTS.values()))
            seen.update({name: [own[i] for own in by_rank] for i, name in enumerate(LAYOUTS)})
        return seen[name]

    return found


def counted(seen: Seen) -> dict[str, float]:
    total: Counter[str] = Counter()
    for span in seen.spans:
        if span.lane == COMM and span.nbytes:
            total[span.axis] += span.nbytes  # type: ignore[assignment]
    return dict(total)


@NAMES
def test_bytes_of_every_rank_and_axis_are_those_that_a_step_counts(name: str, run) -> None:
    job, _ = LAYOUTS[name]
    for place, own in zip(job.places(), run(name), strict=True):
        assert dict(rank_bytes(job, place)) == pytest.approx(counted(own), rel=1e-12)


@NAMES
def test_the_predicted_timeline_sends_the_same_bytes(name: str) -> None:
    job, hardware = LAYOUTS[name]
    predicted = {axis: nbytes for axis, nbytes in predict_step(job, hardware).timeline.bytes_by_axis().items() if nbytes}
    assert predicted == pytest.approx(bytes_by_axis(job), rel=1e-12)


@NAMES
def test_memory_is_within_five_percent_of_the_live_tensors(name: str, run) -> None:
    job, _ = LAYOUTS[name]
    for place, own in zip(job.places(), run(name), strict=True):
        predicted = live_memory(job, place)
        assert (predicted.params, predicted.gradients) == (own.memory.params, own.memory.gradients)
        assert predicted.optimizer == pytest.approx(own.memory.optimizer, rel=0.01)
        assert predicted.activations == pytest.approx(own.memory.activations, rel=0.05), place


@NAMES
def test_step_time_is_within_five_percent_of_paced_ranks(name: str, run) -> None:
    job, hardware = LAYOUTS[name]
    found = run(name)
    took = max(own.seconds for own in found)
    assert predict_step(job, hardware).seconds == pytest.approx(took, rel=0.05)

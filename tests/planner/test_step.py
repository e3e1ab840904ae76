"""What is predicted of a step of ``blend`` against the step itself: bytes to the byte, memory and time within five percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from course.labs.work_blend import Seen
from minipar import GPT, GPTConfig, Mesh
from minipar.blend import build
from minipar.hardware import Cluster, Device, Link
from minipar.planner import Job, live_memory, predict_step, rank_splits
from minipar.planner.holdings import rank_params
from minipar.planner.traffic import bytes_by_axis, bytes_by_link, rank_bytes
from minipar.trace import COMM, COMPUTE, Span
from tests.planner.on_ranks import steps

CONFIG = GPTConfig(layers=4, width=32, heads=4, seq=32)
SHALLOW = replace(CONFIG, layers=2)
DEVICE = Device("small", 1e9, 1e9, 1e9, efficiency=1.0)
FAST, SLOW = Link("inside", 20e-6, 20e6), Link("between", 200e-6, 5e6)
ONE_NODE = Cluster("one node", DEVICE, FAST, FAST)
TWO_NODES = Cluster("two nodes", DEVICE, FAST, SLOW, ranks_per_node=2)

LAYOUTS = {
    "dp4, tied": (Job(replace(SHALLOW, tied=True), dp=4, microbatches=2), ONE_NODE),
    "dp4, small buckets": (Job(SHALLOW, dp=4, bucket_bytes=20_000), TWO_NODES),
    "tp4": (Job(SHALLOW, tp=4), ONE_NODE),
    "dp2 x tp2, by sequence": (Job(SHALLOW, dp=2, tp=2, sequence_parallel=True), TWO_NODES),
    "cp4, zigzag": (Job(SHALLOW, rows=4, cp=4), TWO_NODES),
    "dp2 x cp2, ulysses": (Job(SHALLOW, dp=2, cp=2, context="ulysses"), ONE_NODE),
    "pp4": (Job(CONFIG, pp=4, microbatches=8), TWO_NODES),
    "pp2 x tp2": (Job(CONFIG, pp=2, tp=2, microbatches=4), TWO_NODES),
    "pp2 x cp2, zb-h1, ring": (Job(CONFIG, pp=2, cp=2, microbatches=4, schedule="zb-h1", context="ring"), ONE_NODE),
    "dp2 x pp2, gpipe, tied": (
        Job(replace(CONFIG, tied=True), rows=9, dp=2, pp=2, microbatches=2, schedule="gpipe"), TWO_NODES
    ),
    "dp2 x pp2, zb-h1, small buckets": (
        Job(CONFIG, dp=2, pp=2, microbatches=4, schedule="zb-h1", bucket_bytes=20_000), TWO_NODES
    ),
    "dp2 x pp2, interleaved, small buckets": (
        Job(CONFIG, dp=2, pp=2, microbatches=4, schedule="interleaved", bucket_bytes=20_000), TWO_NODES
    ),
    "dp2 x pp2, a straggler": (
        Job(CONFIG, dp=2, pp=2, microbatches=4), replace(TWO_NODES, stragglers=((3, 2.0),))
    ),
    "pp2 x tp2, a straggler": (
        Job(CONFIG, pp=2, tp=2, microbatches=4), replace(TWO_NODES, stragglers=((3, 3.0),))
    ),
    "pp2 x tp2, interleaved, by sequence": (
        Job(CONFIG, pp=2, tp=2, microbatches=4, schedule="interleaved", sequence_parallel=True), ONE_NODE
    ),
}  # fmt: skip
EXPERTS = {  # who chooses which expert is not known before: neither are the bytes over ep
    "dp4 x ep2": (Job(replace(SHALLOW, experts=4), dp=4, ep=2, microbatches=2), TWO_NODES),
    "cp2 x tp2 x ep4": (Job(replace(SHALLOW, experts=4), cp=2, tp=2, ep=4), ONE_NODE),
    "dp2 x tp2 x ep2, by sequence": (Job(replace(SHALLOW, experts=4), dp=2, tp=2, ep=2, sequence_parallel=True), ONE_NODE),
    "dp2 x pp2 x ep2": (Job(replace(CONFIG, experts=4), dp=2, pp=2, ep=2, microbatches=4), TWO_NODES),
    "dp2 x pp2 x ep2, zb-h1": (Job(replace(CONFIG, experts=4), dp=2, pp=2, ep=2, microbatches=4, schedule="zb-h1"), TWO_NODES),
}
NAMES = pytest.mark.parametrize("name", LAYOUTS)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Seen]]:
    """What every rank showed of each layout: run once, looked at by all tests."""
    return {}


@pytest.fixture
def run(ranks: Callable[[int], Any], seen: dict[str, list[Seen]]) -> Callable[[str], list[Seen]]:
    def found(name: str) -> list[Seen]:
        if not seen:
            everything = LAYOUTS | EXPERTS
            by_rank = ranks(4).run(steps, list(everything.values()))
            seen.update({name: [own[i] for own in by_rank] for i, name in enumerate(everything)})
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


@pytest.mark.parametrize("name", EXPERTS)
def test_told_who_chose_whom_memory_is_within_five_percent_with_experts_too(name: str, run) -> None:
    job, _ = EXPERTS[name]
    routed = [own.routed for own in run(name)]
    for place, own in zip(job.places(), run(name), strict=True):
        predicted = live_memory(job, place, routed=routed)
        assert (predicted.params, predicted.gradients) == (own.memory.params, own.memory.gradients)
        assert predicted.activations == pytest.approx(own.memory.activations, rel=0.05), place


@NAMES
def test_step_time_is_within_five_percent_of_paced_ranks(name: str, run) -> None:
    job, hardware = LAYOUTS[name]
    found = run(name)
    took = max(own.seconds for own in found)
    assert predict_step(job, hardware).seconds == pytest.approx(took, rel=0.05)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "straggler" in name])
def test_a_rank_that_waits_for_a_straggler_is_not_predicted_to_compute_meanwhile(name: str, run) -> None:
    job, hardware = LAYOUTS[name]
    timeline = predict_step(job, hardware).timeline
    for rank, own in enumerate(run(name)):
        predicted, paced = (sum(s.seconds for s in spans if s.lane == COMPUTE) for spans in (timeline.of(rank), own.spans))
        assert predicted == pytest.approx(paced, rel=0.05), rank


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "small buckets" in name])
def test_gradients_set_out_while_their_rank_still_computes(name: str, run) -> None:
    job, hardware = LAYOUTS[name]
    for rank, own in enumerate(run(name)):
        for spans in (own.spans, predict_step(job, hardware).timeline.of(rank)):
            sums = [s.start for s in spans if s.name == "all_reduce" and s.axis == "dp"]
            assert min(sums) < max(s.end for s in spans if s.lane == COMPUTE) < max(sums)


def calls(spans: list[Span]) -> Counter[tuple[str, str]]:
    """Calls by axis and operation. A message and its arrival are one."""
    return Counter((s.axis, "send" if s.name == "exchange" else s.name) for s in spans if s.lane == COMM and s.name != "recv")


@pytest.mark.parametrize("name", LAYOUTS | EXPERTS)
def test_the_predicted_timeline_makes_the_same_calls(name: str, run) -> None:
    job, hardware = (LAYOUTS | EXPERTS)[name]
    timeline = predict_step(job, hardware).timeline
    for rank, own in enumerate(run(name)):
        assert calls(timeline.of(rank)) == calls(own.spans), rank


@pytest.mark.parametrize("name", EXPERTS)
def test_with_experts_all_other_axes_send_what_was_predicted(name: str, run) -> None:
    job, _ = EXPERTS[name]
    for place, own in zip(job.places(), run(name), strict=True):
        predicted, found = dict(rank_bytes(job, place)), counted(own)
        assert predicted.pop("ep") > 0
        assert found.pop("ep") > 0
        assert predicted == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize("name", EXPERTS)
def test_told_who_chose_whom_also_the_bytes_to_experts_are_those_counted(name: str, run) -> None:
    job, _ = EXPERTS[name]
    routed = [own.routed for own in run(name)]
    for place, own in zip(job.places(), run(name), strict=True):
        assert dict(rank_bytes(job, place, routed)) == pytest.approx(counted(own), rel=1e-12)
    assert len({tuple(row) for row in routed}) > 1  # not evenly, or nothing would be tried here
    with pytest.raises(ValueError, match="a row for each of 4 ranks, of 4 counts each"):
        bytes_by_axis(job, routed[1:])
    with pytest.raises(ValueError, match=r"a count of routed copies must be a whole number, not 0\.5"):
        bytes_by_axis(job, [[0.5] * 4] * 4)  # type: ignore[list-item]


@pytest.mark.parametrize("axis", ["pp", "dp", "cp", "tp", "dp+cp", "pp+tp", "world"])
def test_a_line_of_the_mesh_is_found_without_a_look_at_all_ranks(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(CONFIG, dp=3, pp=2, cp=2, tp=4)
    own = [name for name in ("pp", "dp", "cp", "tp") if name not in axis.split("+") and axis != "world"]
    lines: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(job.places()):
        lines.setdefault(tuple(getattr(place, name) for name in own), []).append(rank)
    first, counted = job.place(0), Counter[str]()
    plain = Job.rank
    monkeypatch.setattr(Job, "place", lambda *_: pytest.fail("looked at another rank"))
    monkeypatch.setattr(Job, "rank", lambda *of: (counted.update(["rank"]), plain(*of))[1])
    assert list(job.line(axis, first)) == lines[tuple(getattr(first, name) for name in own)]
    assert counted["rank"] == job.size(axis)


def test_a_slow_link_between_nodes_is_charged_to_the_axes_that_cross_it() -> None:
    job, _ = LAYOUTS["dp2 x tp2, by sequence"]
    by_link = bytes_by_link(job, TWO_NODES)
    assert set(by_link["inside"]) == {"tp"}
    assert set(by_link["between"]) == {"dp", "dp+tp"}
    assert sum(sum(row.values()) for row in by_link.values()) == pytest.approx(sum(bytes_by_axis(job).values()))


@pytest.mark.parametrize(("sizes", "says"), [
    ({"dp": 0}, "dp must be at least 1"),
    ({"dp": 3, "microbatches": 4}, "8 rows do not reach for dp 3 x 4 microbatches"),
    ({"tp": 8}, "4 heads cannot be split over tp 8"),
    ({"cp": 3}, "32 tokens do not cut into equal parts over 3 ranks"),
    ({"cp": 8, "context": "ulysses"}, "Ulysses deals heads out: 4 do not divide over cp 8"),
    ({"pp": 8}, "too few for 8 stages"),
    ({"pp": 2, "microbatches": 3, "rows": 9, "schedule": "no-such"}, "schedule is one of gpipe, .*, not 'no-such'"),
    ({"dp": 2.0}, "dp must be a whole number, not 2.0"),
    ({"rows": "8"}, "rows must be a whole number, not '8'"),
    ({"tp": True}, "tp must be a whole number, not True"),
    ({"chunks": 1.5, "pp": 2}, "chunks must be a whole number, not 1.5"),
    ({"context": "loop"}, "context is one of ring, zigzag, ulysses, not 'loop'"),
    ({"bucket_bytes": 0}, "bucket_bytes must be above 0, and is 0"),
    ({"number_bytes": 0}, "number_bytes must be at least 1, and is 0"),
    ({"config": "small"}, "a Job is a step of a GPTConfig, not of 'small'"),
    ({"dp": 2, "ep": 2}, "this model has none"),
])  # fmt: skip
def test_what_cannot_run_is_refused_with_the_reason(sizes: dict[str, Any], says: str) -> None:
    job = Job(**({"config": CONFIG} | sizes))
    for entry in (lambda: predict_step(job, ONE_NODE), lambda: bytes_by_axis(job), lambda: bytes_by_link(job, ONE_NODE)):
        with pytest.raises(ValueError, match=says):
            entry()


@pytest.mark.parametrize(("options", "says"), [
    ({"ranks": 1.5}, "ranks must be a whole number, not 1.5"),
    ({"rows": 0}, "rows must be at least 1, and is 0"),
    ({"memory_cap": "all"}, "memory_cap must be a number, not 'all'"),
    ({"microbatches": (0,)}, "microbatches must be at least 1, and is 0"),
    ({"optimizer": "lion"}, "optimizer is one of sgd, momentum, adamw, not 'lion'"),
    ({"hardware": None}, "no hardware preset None"),
])  # fmt: skip
def test_a_ranking_that_nothing_could_answer_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rank_splits(**({"config": CONFIG, "hardware": ONE_NODE, "ranks": 4, "rows": 8} | options))


def test_the_optimizer_of_a_prediction_is_one_that_is_known() -> None:
    job = Job(CONFIG)
    with pytest.raises(ValueError, match="optimizer is one of sgd, momentum, adamw, not 'lion'"):
        live_memory(job, job.place(0), "lion")


def test_splits_are_ranked_by_time_and_those_over_the_cap_are_listed_apart() -> None:
    ranking = rank_splits(CONFIG, ONE_NODE, ranks=4, rows=8, memory_cap=1.2e6)
    times = [step.seconds for step in ranking.fitting]
    assert times == sorted(times)
    assert ranking.best is ranking.fitting[0]
    assert ranking.too_large
    assert all(nbytes > 1.2e6 for _, nbytes in ranking.too_large)
    with pytest.raises(ValueError, match="no split fits under the cap; the smallest needs"):
        _ = rank_splits(CONFIG, ONE_NODE, ranks=4, rows=8, memory_cap=1.0).best
    with pytest.raises(ValueError, match="no split is legal for this model and batch"):
        _ = rank_splits(CONFIG, ONE_NODE, ranks=4, rows=1, microbatches=(8,)).best


ODD = replace(CONFIG, kv_heads=2, ffn=50)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, experts=4), ODD, replace(CONFIG, tied=True)])
def test_the_parameters_held_are_those_of_the_model_in_order(config: GPTConfig) -> None:
    model, job = build(config, Mesh(), GPT(config)).model, Job(config)
    assert [held.elements for held in rank_params(job, job.place(0))] == [p.numel() for p in model.parameters()]

"""Timelines: the arithmetic of spans, and the export."""

import itertools
import json
import pickle
import time
from collections.abc import Iterator

import pytest

from minipar import trace
from minipar.trace import Span, Timeline, Tracer


def compute(rank: int, name: str, start: float, end: float, microbatch: int = -1, stage: int = 0) -> Span:
    return Span(rank, "compute", name, start, end, stage=stage, microbatch=microbatch)


def comm(rank: int, start: float, end: float, nbytes: float = 0, axis: str = "dp") -> Span:
    return Span(rank, "comm", "all_reduce", start, end, axis=axis, nbytes=nbytes)


def test_bubble_is_one_minus_busy_over_ranks_times_span() -> None:
    timeline = Timeline([compute(0, "F", 0, 3), compute(1, "F", 1, 2)], ranks=2)
    assert timeline.makespan == 3
    assert timeline.span == 3
    assert timeline.bubble == pytest.approx(1 - 4 / 6)


def test_span_is_the_longest_of_the_ranks_own_and_makespan_covers_all() -> None:
    timeline = Timeline([compute(0, "F", 0, 2), compute(1, "F", 2, 4)], ranks=2)
    assert timeline.makespan == 4
    assert timeline.span == 2
    assert timeline.bubble == 0


def test_an_idle_rank_counts_as_bubble() -> None:
    assert Timeline([compute(0, "F", 0, 1)], ranks=4).bubble == pytest.approx(3 / 4)


def test_an_empty_timeline_has_no_length_and_no_bubble() -> None:
    timeline = Timeline([], ranks=2)
    assert (timeline.makespan, timeline.span, timeline.bubble, timeline.peak_activations) == (0, 0, 0, [0, 0])


def test_who_asks_again_and_again_for_start_and_length_does_not_go_through_all_spans_again() -> None:
    class Counted(list[Span]):
        looks = 0

        def __iter__(self) -> Iterator[Span]:
            Counted.looks += 1
            return super().__iter__()

    timeline = Timeline(Counted([compute(0, "F", 1, 3), compute(1, "B", 2, 5)]), ranks=2)
    asked = [(timeline.start, timeline.makespan, *timeline.breakdown(0)) for _ in range(50)]
    assert asked == [(1, 4, 2, 0, 2, 4)] * 50
    assert 0 < Counted.looks < 10


def test_work_communication_and_idle_add_up_to_the_wall_time() -> None:
    timeline = Timeline([compute(0, "B", 0, 4), comm(0, 3, 6), comm(0, 5, 7)], ranks=1)
    assert timeline.breakdown(0, wall=10) == (4, 3, 3, 10)
    assert timeline.overlap(0) == pytest.approx(1 / 4)  # one of four seconds of communication lay behind the backward


@pytest.mark.parametrize(("release", "peak"), [("B", 1), ("W", 2)])
def test_activations_are_held_until_the_full_backward_or_until_the_weight_gradient(release: str, peak: int) -> None:
    """F0 B0 F1 B1 holds one; F0 I0 F1 W0 ... holds two, since I releases nothing."""
    spans = [compute(0, "F", 0, 1, 0), compute(0, "B" if release == "B" else "I", 1, 2, 0), compute(0, "F", 2, 3, 1)]
    if release == "W":
        spans.append(compute(0, "W", 3, 4, 0))
    assert Timeline(spans, ranks=1).peak_activations == [peak]


def test_a_forward_in_two_pieces_is_one_activation() -> None:
    spans = [compute(0, "F", 0, 1, 0), compute(0, "F", 2, 3, 0), compute(0, "B", 3, 4, 0)]
    assert Timeline(spans, ranks=1).peak_activations == [1]


def test_chunks_of_one_microbatch_on_one_rank_are_held_apart() -> None:
    spans = [compute(0, "F", 0, 1, 0, stage=0), compute(0, "F", 1, 2, 0, stage=4)]
    assert Timeline(spans, ranks=1).peak_activations == [2]


def test_bytes_add_up_by_axis() -> None:
    spans = [comm(0, 0, 1, 10, "dp"), comm(1, 0, 1, 10, "dp"), comm(0, 0, 1, 5, "tp")]
    assert Timeline(spans, ranks=2).bytes_by_axis() == {"dp": 20, "tp": 5}


def test_source_must_be_one_of_the_honest_words() -> None:
    with pytest.raises(ValueError, match="counted, measured, paced, predicted"):
        Timeline([], ranks=1, source="guessed")


def test_chrome_trace_has_no_overlap_in_a_lane_and_loses_no_span(tmp_path) -> None:
    spans = [compute(0, "B", 10, 14), comm(0, 11, 13, 8), comm(0, 12, 15), comm(0, 13, 14), comm(1, 10, 11)]
    path = Timeline(spans, ranks=2).to_chrome_trace(tmp_path / "trace.json")
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(spans)
    assert min(e["ts"] for e in events) == 0  # microseconds since the first span
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in lanes.values():
        row.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(row))


def test_a_nested_span_splits_the_outer_one() -> None:
    tracer = Tracer()
    with tracer.span("step"), tracer.span("forward"):
        pass
    spans = sorted(tracer.drain(), key=lambda s: s.start)
    assert [s.name for s in spans] == ["step", "forward", "step"]
    assert all(a.end <= b.start for a, b in itertools.pairwise(spans))


def test_time_blocked_in_communication_is_not_computation() -> None:
    tracer = Tracer()
    with tracer.span("B"), tracer.blocked():
        time.sleep(0.05)
        inside = time.monotonic()
    assert not any(s.start < inside < s.end for s in tracer.drain())


def test_blocking_inside_blocking_stops_the_computation_once() -> None:
    tracer = Tracer()
    with tracer.span("B"), tracer.blocked(), tracer.blocked():
        time.sleep(0.01)
    before, after = tracer.drain()
    assert before.end <= after.start


def test_an_error_inside_a_span_still_closes_it() -> None:
    tracer = Tracer()
    with pytest.raises(KeyError), tracer.during("forward"), tracer.span("F"):
        raise KeyError
    assert [(s.name, s.phase) for s in tracer.drain()] == [("F", "forward")]
    assert tracer.phase == ""


def test_draining_takes_each_span_once() -> None:
    tracer = Tracer(rank=3)
    tracer.add("F", "compute", 0, 1)
    assert [s.rank for s in tracer.drain()] == [3]
    assert tracer.drain() == []


def test_a_disabled_tracer_collects_nothing() -> None:
    tracer = Tracer()
    tracer.enabled = False
    with tracer.span("F"):
        pass
    assert tracer.drain() == []


def test_a_tracer_that_travels_with_a_function_becomes_the_one_of_the_process_it_reaches():
    assert pickle.loads(pickle.dumps(trace.tracer)) is trace.tracer

import itertools

import numpy as np
import pytest

from course.views.aggregate import SpanAggregate
from course.views.block import Block, account
from course.views.spans import BUSY, BYTES, COUNT, END, LABEL, ROW, START, Packer, thin
from minipar.trace import COMM, COMPUTE, Span, Timeline


def random_timeline(ranks=3, spans=300, seed=0):
    """Computation that never overlaps itself, transfers that do, on ranks that start at different times."""
    rng, out = np.random.default_rng(seed), []
    for rank in range(ranks):
        t = 100 + rng.random()
        for i in range(spans):
            t += rng.exponential(0.01)
            took = rng.exponential(0.02)
            out.append(Span(rank, COMPUTE, "FBW"[i % 3], t, t + took, stage=rank, microbatch=i))
            late = t + rng.exponential(0.02)
            out.append(Span(rank, COMM, "all_reduce", late, late + rng.exponential(0.03), "dp", 8.0 * i, (0, 1)))
            t += took
    return Timeline(out, ranks, "measured")


def overlaps(spans):
    """The largest overlap of two spans of one row, in seconds."""
    order = spans[np.lexsort((spans[:, START], spans[:, ROW]))]
    same = order[1:, ROW] == order[:-1, ROW]
    return float(np.max((order[:-1, END] - order[1:, START])[same], initial=0.0))


def test_spans_of_one_row_never_overlap():
    block = Block.of(random_timeline())
    assert len(block.rows) > 2 * 3  # transfers at the same time have rows of their own
    assert overlaps(block.spans) < 1e-9


def test_rows_come_by_rank_with_computation_first():
    rows = Block.of(random_timeline()).rows
    assert [r.rank for r in rows] == sorted(r.rank for r in rows)
    for rank in range(3):
        assert [r.lane == COMPUTE for r in rows if r.rank == rank].index(True) == 0


def test_title_figures_equal_those_of_the_timeline():
    timeline = random_timeline()
    block = Block.of(timeline)
    assert block.makespan == pytest.approx(timeline.makespan)
    assert block.bubble == pytest.approx(timeline.bubble)
    assert block.makespan_bubble == pytest.approx(timeline.makespan_bubble)
    expected = [timeline.breakdown(rank).idle / timeline.makespan for rank in range(3)]
    assert block.idle == pytest.approx(expected)


def test_a_rank_without_spans_has_an_empty_track():
    block = Block.of(Timeline([Span(1, COMPUTE, "F", 0, 1)], 3, "predicted"))
    assert [r.rank for r in block.rows] == [0, 1, 2]
    assert block.idle == (1.0, 0.0, 1.0)


def test_a_timeline_without_spans_is_drawn_empty():
    block = Block.of(Timeline([], 2, "predicted"))
    assert len(block.spans) == 0
    assert (block.makespan, block.bubble) == (0.0, 0.0)


@pytest.mark.parametrize("limit", [10, 100, 1000])
def test_thinning_keeps_totals_and_paints_over_no_idle_time(limit):
    block = Block.of(random_timeline(spans=2000))
    few = thin(block.spans, limit)
    assert len(few) < len(block.spans)
    for total in (COUNT, BYTES, BUSY):
        assert few[:, total].sum() == pytest.approx(block.spans[:, total].sum())
    assert overlaps(few) < 1e-9
    assert (few[:, BUSY] <= few[:, END] - few[:, START] + 1e-9).all()
    makespan, bubble, _, _ = account(few, block.rows, 3)
    assert makespan == pytest.approx(block.makespan)
    assert bubble == pytest.approx(block.bubble, abs=1e-9)


def test_thinning_leaves_a_long_span_alone():
    long = Span(0, COMPUTE, "F", 50.0, 90.0)
    tiny = [Span(0, COMPUTE, "B", t / 100, t / 100 + 0.005) for t in range(5000)]
    few = Block.of(Timeline([*tiny, long], 1, "measured")).thinned(200)
    assert len(few) <= 220
    assert ((few[:, COUNT] == 1) & (few[:, START] == 50.0) & (few[:, END] == 90.0)).sum() == 1


def test_the_part_that_is_looked_at_keeps_its_detail():
    block = Block.of(random_timeline(spans=3000))
    low, high = 0.5 * block.makespan, 0.51 * block.makespan
    few = block.thinned(2000, (low, high))
    inside = (few[:, END] >= low) & (few[:, START] <= high)
    assert (few[inside, COUNT] == 1).all()
    assert few[:, COUNT].sum() == len(block.spans)
    assert overlaps(few) < 1e-9
    assert len(few) < 2300


def test_few_spans_are_not_merged():
    block = Block.of(random_timeline(spans=20))
    assert block.thinned(10_000) is block.spans


def test_an_aggregate_counts_every_span_and_stays_small():
    aggregate = SpanAggregate(3, keep=500)
    timeline = random_timeline(spans=3000)
    by_end = sorted(timeline.spans, key=lambda s: s.end)
    for i in range(0, len(by_end), 700):
        aggregate.add(by_end[i : i + 700])
    block = aggregate.block()
    assert aggregate.seen == len(timeline.spans)
    assert block.spans[:, COUNT].sum() == len(timeline.spans)
    assert block.spans[:, BYTES].sum() == pytest.approx(sum(s.nbytes for s in timeline.spans))
    assert len(block.spans) <= 2 * 500 + 700
    assert block.makespan == pytest.approx(timeline.makespan)


def test_spans_that_arrive_in_order_of_their_end_never_overlap_in_a_row():
    timeline = random_timeline(ranks=1, spans=500)
    packer = Packer()
    assert overlaps(packer.numbers(sorted(timeline.spans, key=lambda s: s.end))) < 1e-9


def test_sends_and_receives_keep_to_rows_of_their_own_in_the_same_order_on_every_rank():
    """A ring: each rank's receive ends before or after its send, and may be noted before or after it."""
    spans = []
    for rank, step in itertools.product(range(4), range(6)):
        late = 0.01 * ((rank + step) % 3)
        spans.append(Span(rank, COMM, "send", step + late, step + 0.9, "dp", 1, ((rank + 1) % 4,)))
        spans.append(Span(rank, COMM, "recv", step + 0.02 - late, step + 0.95 - late, "dp", 0, ((rank - 1) % 4,)))
    block = Block.of(Timeline(spans, 4, "paced"))
    names = [{block.labels[int(span[LABEL])].name for span in block.spans if span[ROW] == row} for row in range(len(block.rows))]
    assert names == [set(), {"send"}, {"recv"}] * 4

"""The predicted timeline of attention over a cut sequence: the steps' closed forms, and the bytes that real ranks send."""

from itertools import pairwise

import pytest

from minipar.context_parallel import TokenLayout, predicted
from minipar.context_parallel.softmax import BACKWARD_FLOPS, FORWARD_FLOPS
from minipar.hardware import Cluster, Device, Link
from minipar.trace import COMM, COMPUTE
from tests.context_parallel.test_traffic import spans
from tests.context_parallel.whole import HEAD_DIM, HEADS, SEQ

TOKENS, LONG = 960, 8 * 960


def hardware(latency: float = 0.0, bandwidth: float = float("inf")) -> Cluster:
    """One pair of a query and a key, for one element of a head, takes a second in a forward product."""
    link = Link("link", latency, bandwidth)
    return Cluster("test", Device("device", float(FORWARD_FLOPS), 1e9, 1e9, efficiency=1.0), link, link)


def sent(timeline, rank: int, phase: str) -> float:
    return sum(s.nbytes for s in timeline.of(rank, COMM) if (s.phase == "backward") == (phase == "backward"))


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("method", ["ring", "zigzag"])
def test_with_instant_links_each_step_lasts_as_long_as_a_ring_in_lockstep_allows(method, n):
    """Zigzag: all have the same to do, so the makespan is the mean work. In order: the last rank computes all the time."""
    layout = TokenLayout.of(method, n)
    work = [sum(steps) for steps in layout.work(LONG)]
    both = 1 + BACKWARD_FLOPS / FORWARD_FLOPS
    assert predicted.timeline(layout, LONG, 1, 1, hardware()).makespan == pytest.approx(max(work) * both)
    if method == "zigzag":
        assert max(work) == pytest.approx(sum(work) / n)


def test_where_links_are_slow_the_keys_set_the_pace():
    n, nbytes = 4, 2 * 4 * TOKENS / 4
    slow = hardware(bandwidth=nbytes / 1e9)  # a second of the clock counts nothing beside 1e9 of them
    timeline = predicted.timeline(TokenLayout.of("zigzag", n), TOKENS, 1, 1, slow)
    hops = (n - 1) + 2 * (n - 1)  # forward; backward the keys and their gradients, over the same links
    assert timeline.makespan == pytest.approx(hops * 1e9, rel=1e-3)


def test_latency_is_paid_once_for_each_hop():
    zigzag = TokenLayout.of("zigzag", 4)
    with_latency, without = (predicted.timeline(zigzag, TOKENS, 1, 1, hardware(latency=latency)) for latency in (1e9, 0))
    assert with_latency.makespan - without.makespan == pytest.approx(9e9, rel=1e-3)


def test_no_rank_does_two_things_at_once_and_no_link_serves_two_transfers():
    for cut in (("ring", 4), ("zigzag", 3), ("zigzag", 4, 2), ("ulysses", 4)):
        layout = TokenLayout.of(*cut)
        timeline = predicted.timeline(layout, TOKENS, 4, 8, hardware(latency=3.0, bandwidth=0.5))
        for rank in range(layout.ranks):
            lanes = [timeline.of(rank, COMPUTE)]
            lanes += [[s for s in timeline.of(rank, COMM) if s.name == name] for name in ("send", "recv", "all_to_all")]
            for lane in lanes:
                assert all(a.end <= b.start * (1 + 1e-12) for a, b in pairwise(lane))


@pytest.mark.parametrize("cut", [("ring", 4), ("zigzag", 4), ("ulysses", 4), ("zigzag", 4, 2)], ids=str)
def test_bytes_are_those_that_real_ranks_send(ranks, cut):
    layout = TokenLayout.of(*cut)
    rows = 2  # of the ranks' batch; the prediction is for one
    timeline = predicted.timeline(layout, SEQ, HEADS, HEAD_DIM, hardware())
    for rank, seen in enumerate(ranks(4).run(spans, layout)):
        for phase in ("forward", "backward"):
            counted = sum(s.nbytes for s in seen if s.phase == phase)
            assert counted == rows * sent(timeline, rank, phase)
        assert sorted(s.name for s in seen) == sorted(s.name for s in timeline.of(rank, COMM))

"""The predicted timeline and the closed form agree, and say what the theory says."""

from itertools import pairwise

import pytest

from minipar.collectives import ALL_REDUCE, costs
from minipar.collectives.patterns import pattern
from minipar.hardware import PRESETS, Cluster, Link

SLOW = Link("slow", latency=0.25, bandwidth=1000.0)
EQUAL = Cluster("equal", PRESETS["cpu"].device, SLOW, SLOW, ranks_per_node=1)


@pytest.mark.parametrize("algorithm", list(ALL_REDUCE))
@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_predicted_makespan_is_the_closed_form(algorithm, n):
    timeline = costs.predict(algorithm, n, 840, EQUAL, segment_bytes=100)
    assert timeline.source == "predicted"
    assert timeline.makespan == pytest.approx(costs.seconds(algorithm, n, 3360, SLOW, segment_bytes=100), rel=1e-12)


def test_on_one_rank_nothing_is_sent():
    for algorithm in ALL_REDUCE:
        assert costs.predict(algorithm, 1, 840, EQUAL).makespan == 0 == costs.seconds(algorithm, 1, 3360, SLOW)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_other_numbers_of_ranks_take_two_more_steps_at_most(n):
    for algorithm in ("recursive doubling", "recursive halving"):
        smaller = costs.predict(algorithm, 1 << (n.bit_length() - 1), 840, EQUAL).makespan
        fold = 2 * SLOW.seconds(840 * 4)
        assert costs.predict(algorithm, n, 840, EQUAL).makespan == pytest.approx(smaller + fold)


def test_the_best_algorithm_changes_with_the_size():
    def best(elements: int) -> str:
        return min(ALL_REDUCE, key=lambda a: costs.predict(a, 8, elements, EQUAL).makespan)

    assert best(1) == "recursive doubling"  # fewest latencies
    assert best(100_000_000) in ("ring", "segmented ring", "recursive halving")  # fewest bytes
    assert costs.predict("ring", 8, 10**6, EQUAL).makespan < costs.predict("naive", 8, 10**6, EQUAL).makespan / 6


def test_the_ring_is_as_slow_as_its_slowest_link():
    fast = Link("fast", latency=0.0, bandwidth=1e6)
    nodes = Cluster("two nodes", PRESETS["cpu"].device, inside=fast, between=SLOW, ranks_per_node=4)
    assert costs.predict("ring", 8, 8000, nodes).makespan == pytest.approx(costs.seconds("ring", 8, 32000, SLOW), rel=0.1)


def test_no_link_serves_two_messages_at_once():
    for algorithm in ALL_REDUCE:
        timeline = costs.predict(algorithm, 7, 1009, EQUAL, segment_bytes=64)
        for rank in range(7):
            for kind in ("send", "recv"):
                spans = [s for s in timeline.of(rank) if s.name == kind]
                assert all(a.end <= b.start + 1e-9 for a, b in pairwise(spans)), algorithm


def test_bytes_per_link_are_those_of_the_pattern():
    sent = costs.bytes_per_link(costs.predict("naive", 4, 10, EQUAL))
    assert sent == {(1, 0): 40, (2, 0): 40, (3, 0): 40, (0, 1): 40, (0, 2): 40, (0, 3): 40}
    ring = costs.bytes_per_link(costs.predict("ring", 4, 12, EQUAL))
    assert ring == {(r, (r + 1) % 4): 72 for r in range(4)}


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="choose one of naive"):
        pattern("butterfly", 4, 10)

"""Bytes and messages: what real ranks sent, the list that predicts it, and the closed form agree exactly."""

import pytest
import torch

from minipar import collectives, comm
from minipar.collectives import costs
from minipar.collectives.patterns import pattern
from minipar.trace import tracer


def sent_messages(algorithm: str, elements: int) -> list[tuple[int, int]]:
    """``(to, bytes)`` of every message of this rank, in order."""
    with tracer.watch() as spans:
        collectives.all_reduce_(torch.ones(elements, dtype=torch.float64), None, algorithm)
    return [(s.peers[0], int(s.nbytes)) for s in spans if s.name == "send"]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("elements", [0, 5, 840, 1009])
def test_every_algorithm_sends_the_messages_of_its_pattern(ranks, n, elements):
    pool = ranks(n)
    for algorithm in collectives.ALL_REDUCE:
        predicted = pattern(algorithm, n, elements, itemsize=8)
        for rank, sent in enumerate(pool.run(sent_messages, algorithm, elements)):
            assert sent == [(m.to, m.nbytes) for m in predicted.messages if m.source == rank], algorithm


def segmented(elements: int) -> list[tuple[int, int]]:
    with tracer.watch() as spans:
        collectives.segmented_ring.all_reduce_(torch.ones(elements), None, segment_bytes=64)
    return [(s.peers[0], int(s.nbytes)) for s in spans if s.name == "send"]


def test_a_ring_in_many_segments_sends_the_messages_of_its_pattern(ranks):
    predicted = pattern("segmented ring", 3, 1009, segment_bytes=64)
    assert len(predicted.messages) > 3 * 2 * 20  # two hops of partial sums in many segments
    for rank, sent in enumerate(ranks(3).run(segmented, 1009)):
        assert sent == [(m.to, m.nbytes) for m in predicted.messages if m.source == rank]


@pytest.mark.parametrize("algorithm", ["ring", "segmented ring"])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_each_rank_of_a_ring_sends_two_n_minus_one_over_n_of_the_data(algorithm, n):
    nbytes = 840 * 4
    whole = pattern(algorithm, n, 840)
    assert [whole.sent(rank) for rank in range(n)] == [2 * (n - 1) * nbytes // n] * n
    ragged = pattern(algorithm, n, 1009)  # a prime: all pieces but one's own, and all but the right neighbour's
    pieces = [len(piece) * 4 for piece in torch.empty(1009).tensor_split(n)]
    assert [ragged.sent(r) for r in range(n)] == [2 * 1009 * 4 - pieces[r] - pieces[(r + 1) % n] for r in range(n)]


@pytest.mark.parametrize("algorithm", list(collectives.ALL_REDUCE))
@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_busiest_rank_sends_what_the_formula_says(algorithm, n):
    what = pattern(algorithm, n, 840)
    assert max(what.sent(rank) for rank in range(n)) == pytest.approx(costs.FORMULAS[algorithm].sent(n) * 840 * 4)


def other_bytes() -> list[float]:
    n = comm.world().size
    sent = []
    for call in (
        lambda: collectives.reduce_scatter(torch.ones(840)),
        lambda: collectives.all_gather(torch.ones(840 // n)),
        lambda: collectives.all_to_all(torch.ones(840)),
        lambda: collectives.broadcast(torch.ones(840)),
    ):
        with tracer.watch() as spans:
            call()
        sent.append(sum(s.nbytes for s in spans if s.name == "send"))
    return sent


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_other_collectives_send_no_more_than_they_must(ranks, n):
    got = ranks(n).run(other_bytes)
    share = 840 * 4 * (n - 1) / n
    assert [sent[:3] for sent in got] == [[share] * 3] * n
    assert sum(sent[3] for sent in got) == 840 * 4 * (n - 1)

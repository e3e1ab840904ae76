"""Experts placed by load: the published example, even packs, and less traffic and waiting when measured."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minipar import Mesh
from minipar.expert_parallel.dispatch import plan
from minipar.expert_parallel.placement import Placement, in_order, pack, place, replicate

LOADS = ([90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27])


@pytest.mark.parametrize(
    ("loads", "slots", "replicas", "by_rank"),
    [
        (
            LOADS[0],
            [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
            [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1],
            [121.5, 86.5, 125.0, 113.0, 147.5, 131.5, 156.0, 152.0],
        ),
        (
            LOADS[1],
            [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
            [1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1],
            [173.0, 179.5, 120.5, 172.0, 123.0, 152.0, 118.5, 117.5],
        ),
    ],
)
def test_the_published_example(loads, slots, replicas, by_rank):
    """EPLB's README: two layers of 12 experts in 4 groups, 16 replicas on 2 nodes of 4 GPUs."""
    placement = place(loads, slots=16, ranks=8, nodes=2, groups=4)
    assert list(placement.slots) == slots
    assert placement.replicas == replicas
    assert placement.rank_loads(loads) == by_rank


def test_the_global_method_is_used_where_groups_do_not_divide_over_nodes():
    assert place(LOADS[0], 16, 8, nodes=2, groups=3) == place(LOADS[0], 16, 8)
    assert place(LOADS[0], 16, 8).imbalance(LOADS[0]) < place(LOADS[0], 16, 8, nodes=2, groups=4).imbalance(LOADS[0])


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=24), st.integers(0, 8), st.sampled_from([1, 2, 4]))
def test_every_expert_has_a_slot_and_every_rank_equally_many(loads, more, ranks):
    slots = -(-(len(loads) + more) // ranks) * ranks
    placement = place(loads, slots, ranks)
    assert len(placement.slots) == slots
    assert set(placement.slots) == set(range(len(loads)))
    assert sum(placement.rank_loads(loads)) == pytest.approx(sum(loads))


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8))
def test_packs_are_full_and_the_heaviest_item_leads_a_pack(loads):
    packs = pack(loads, 4)
    assert sorted(item for items in packs for item in items) == list(range(8))
    assert all(len(items) == 2 for items in packs)
    assert max(loads) in [loads[items[0]] for items in packs]


def test_replicas_go_to_the_most_load_per_replica():
    assert replicate([10, 35, 12], 6) == [0, 1, 2, 1, 1, 2]  # 35 -> 17.5 each -> 11.7 each, then 12


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((3, 2), "3 slots cannot hold 4 experts"),
        ((5, 2), "5 slots do not divide over 2 ranks"),
        ((6, 3, 2, 2), "3 ranks do not divide"),
    ],
)
def test_uneven_placements_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        place([1, 2, 3, 4], *arguments)
    with pytest.raises(ValueError, match="5 experts do not divide over 2 ranks"):
        in_order(5, 2)


def received(placement: Placement, expert: list[int]) -> tuple[int, list[int]]:
    """Rows that this rank's slots get when every rank routes the same copies, and the rows it sends to each rank."""
    n = placement.ranks
    axis = Mesh(dp=n, ep=n)["ep"]
    copies = torch.tensor(expert)
    mapping = plan(placement.slot_of(copies), torch.arange(len(copies)), len(copies), [placement.per_rank] * n, axis)
    return sum(mapping.counts), mapping.send


def test_replicas_even_out_the_rows_that_ranks_get_when_measured(ranks):
    """A real all-to-all of counts: one expert of six gets most of the tokens."""
    expert = [0] * 42 + [1] * 8 + [2] * 4 + [3] * 4 + [4] * 2 + [5] * 2
    loads = [expert.count(e) for e in range(6)]
    before, after = in_order(6, 2), place(loads, 8, 2)
    rows = {}
    for placement in (before, after):
        results = ranks(2).run(received, placement, expert)
        rows[placement] = [count for count, _ in results]
        assert [count / 2 for count, _ in results] == placement.rank_loads(loads)
        assert all(sum(sent) == len(expert) for _, sent in results)
    assert max(rows[before]) / 62 == pytest.approx(before.imbalance(loads)) == pytest.approx(108 / 62)
    assert max(rows[after]) / 62 == pytest.approx(after.imbalance(loads))
    assert after.imbalance(loads) < 1.1

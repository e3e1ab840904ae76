"""One capacity rule, and drops that follow it whatever the number of ranks."""

from fractions import Fraction
from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minipar import GPTConfig, Mesh
from minipar.expert_parallel import MoE, MoEOptions, parallelize
from minipar.expert_parallel.capacity import capacity, queue_positions, within_capacity
from minipar.expert_parallel.router import Routing
from minipar.mesh import Axis

ALONE = Axis("rank", 1, 0, (0,))
OTHERS = {  # how others round 1.25 * 10 tokens * 2 / 4 experts
    "deepspeed": lambda t, e, k, f: ceil(t / e * f * k),
    "megatron": lambda t, e, k, f: ceil(t * k / e * f),
    "megablocks": lambda t, e, k, f: int(f * k * t / e),
    "tutel": lambda t, e, k, f: k * int(f * ceil(t / e)),
}


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "factor", "room"),
    [
        (10, 4, 2, 1.25, 7),
        (10, 4, 2, 1.0, 5),
        (10, 4, 1, 1.0, 3),
        (512, 8, 2, 1.1, 141),
        (100, 10, 1, 1.1, 11),  # in floating point 1.1 * 10 is a little over 11, and rounds up to 12
        (0, 4, 2, 1.25, 0),
        (1, 64, 1, 0.01, 1),
    ],
)
def test_the_capacity_rule(tokens, experts, k, factor, room):
    assert capacity(tokens, experts, k, factor) == room


def test_systems_differ_on_the_same_numbers():
    rounded = {name: rule(10, 4, 2, 1.25) for name, rule in OTHERS.items()}
    assert rounded == {"deepspeed": 7, "megatron": 7, "megablocks": 6, "tutel": 6}
    assert capacity(10, 4, 2, 1.25) == rounded["megatron"]


@given(st.integers(0, 999), st.integers(1, 64), st.integers(1, 8), st.integers(1, 400))
def test_the_rule_is_exact(tokens, experts, k, percent):
    assert capacity(tokens, experts, k, percent / 100) == ceil(Fraction(percent, 100) * tokens * k / experts)


@pytest.mark.parametrize("factor", [0, 0.0, -1.0, float("nan")])
def test_no_room_at_all_is_refused(factor):
    with pytest.raises(ValueError, match="leaves no expert any room"):
        capacity(10, 4, 2, factor)
    with pytest.raises(ValueError, match="leaves no expert any room"):
        MoEOptions(capacity=factor)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=30))
def test_queues_are_by_key_and_then_by_place(copies):
    expert, key = (torch.tensor([c[i] for c in copies], dtype=torch.int64) for i in (0, 1))
    places = queue_positions(expert, key).tolist()
    for e in range(5):
        queue = sorted((k, i) for i, (x, k) in enumerate(copies) if x == e)
        assert [places[i] for _, i in queue] == list(range(len(queue)))


def routing(expert: list[list[int]], weight: list[list[float]]) -> Routing:
    tokens, k = len(expert), len(expert[0])
    token = torch.arange(tokens).repeat_interleave(k)
    choice = torch.arange(k).repeat(tokens)
    flat = torch.tensor(weight).flatten()
    return Routing(token, torch.tensor(expert).flatten(), flat, choice, torch.zeros(tokens, 3), torch.zeros(tokens, 3))


def test_first_choices_go_before_second_choices():
    both = routing([[0, 1], [1, 0], [1, 2]], [[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]])
    kept = within_capacity(both, 2, "position", ALONE)
    assert kept.tolist() == [True, False, True, True, True, True]  # expert 1: tokens 1 and 2 chose it first


def test_by_score_the_most_wanted_stay_and_ties_go_to_the_earlier_token():
    one = routing([[0], [0], [0], [0]], [[0.2], [0.9], [0.5], [0.5]])
    assert within_capacity(one, 2, "score", ALONE).tolist() == [False, True, True, False]
    assert within_capacity(one, 2, "position", ALONE).tolist() == [True, True, False, False]


def kept_tokens(sizes: dict, options: MoEOptions) -> tuple[list[int], list[int], torch.Tensor]:
    """Copies kept by each expert and the dropped copies in all, and the outputs of this rank's rows of one global batch."""
    mesh = Mesh(**sizes)
    torch.manual_seed(3)
    layer = parallelize(MoE(GPTConfig(width=6, heads=1, ffn=5, experts=4, top_k=2, moe=options)).double(), mesh)
    x = torch.randn(7, 5, 6, dtype=torch.float64)  # 7 rows: they do not divide over 2, 3 or 4 ranks
    mine = x.tensor_split(mesh["dp"].size)[mesh["dp"].rank]
    y = layer(mine).detach()
    return layer.last.kept.tolist(), [layer.last.dropped], y


def over(ranks, n: int, options: MoEOptions) -> tuple[torch.Tensor, int, torch.Tensor]:
    parts = ranks(n).run(kept_tokens, {"dp": n, "ep": n}, options) if n > 1 else [kept_tokens({}, options)]
    return torch.tensor([p[0] for p in parts]).sum(0), sum(p[1][0] for p in parts), torch.cat([p[2] for p in parts])


@pytest.mark.parametrize("options", [MoEOptions(capacity=0.5, order="position"), MoEOptions(capacity=0.5, order="score")])
def test_global_drops_do_not_depend_on_the_rank_count(ranks, options):
    kept, dropped, y = over(ranks, 1, options)
    assert kept.max() == capacity(35, 4, 2, 0.5) == 9  # some expert is full
    assert dropped == 70 - kept.sum() > 0
    for n in (2, 3, 4):
        same_kept, same_dropped, same_y = over(ranks, n, options)
        assert torch.equal(same_kept, kept)
        assert same_dropped == dropped
        torch.testing.assert_close(same_y, y, rtol=1e-12, atol=1e-15)


def test_per_rank_drops_do_depend_on_it_and_keep_each_rank_within_its_own_capacity(ranks):
    options = MoEOptions(capacity=0.5, scope="rank")
    _, _, y = over(ranks, 1, options)
    parts = ranks(2).run(kept_tokens, {"dp": 2, "ep": 2}, options)
    assert max(parts[0][0]) == capacity(20, 4, 2, 0.5)  # 4 rows of 5 tokens
    assert max(parts[1][0]) == capacity(15, 4, 2, 0.5)
    assert not torch.allclose(torch.cat([p[2] for p in parts]), y)


def test_by_score_the_order_of_the_tokens_does_not_matter():
    torch.manual_seed(0)
    options = MoEOptions(capacity=0.5, order="score")
    layer = MoE(GPTConfig(width=6, heads=1, ffn=5, experts=4, top_k=2, moe=options)).double()
    x, order = torch.randn(31, 6, dtype=torch.float64), torch.randperm(31)
    torch.testing.assert_close(layer(x[order]), layer(x)[order], rtol=1e-12, atol=1e-15)
    dropless = MoE(GPTConfig(width=6, heads=1, ffn=5, experts=4, top_k=2)).double()
    torch.testing.assert_close(dropless(x[order]), dropless(x)[order], rtol=1e-12, atol=1e-15)

"""What each way of cutting the sequence sends: to whom, how often, how many bytes."""

import pytest
import torch

from minipar import Mesh
from minipar.context_parallel import ContextAttention, TokenLayout, heads_from_sequence, sequence_from_heads
from minipar.trace import Span, tracer
from tests.context_parallel.whole import HEAD_DIM, HEADS, SEQ, cut, inputs

ROWS, ITEM = 2, 4  # float32


def spans(layout: TokenLayout, kv_heads: int = HEADS) -> list[Span]:
    axis = Mesh(cp=layout.ranks)["cp"]
    *leaves, grad = cut([x.float() for x in inputs(kv_heads)], layout.positions(SEQ, axis.rank))
    leaves = [x.requires_grad_() for x in leaves]
    with tracer.watch() as seen:
        with tracer.during("forward"):
            out = ContextAttention(axis, layout)(*leaves)
        with tracer.during("backward"):
            out.backward(grad)
    return [s for s in seen if s.lane == "comm"]


def whole_bytes(heads: int) -> int:
    """Of one tensor of the whole sequence."""
    return ROWS * heads * SEQ * HEAD_DIM * ITEM


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("method", ["ring", "zigzag"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_ring_passes_keys_and_values_on_n_minus_1_times(ranks, n, method, kv_heads):
    both = 2 * whole_bytes(kv_heads)
    for rank, seen in enumerate(ranks(n).run(spans, TokenLayout.of(method, n), kv_heads)):
        sent = [s for s in seen if s.name == "send"]
        assert {s.name for s in seen} == {"send", "recv"}
        assert {s.peers for s in sent} == {((rank + 1) % n,)}
        assert {s.peers for s in seen if s.name == "recv"} == {((rank - 1) % n,)}
        assert sum(s.nbytes for s in sent if s.phase == "forward") == (n - 1) / n * both
        assert sum(s.nbytes for s in sent if s.phase == "backward") == 2 * (n - 1) / n * both  # they, and their gradients
        assert len(sent) == 3 * (n - 1)


@pytest.mark.parametrize("kv_heads", [HEADS, 4])
@pytest.mark.parametrize("n", [2, 4])
def test_ulysses_trades_four_tensors_each_way(ranks, n, kv_heads):
    traded = 2 * whole_bytes(HEADS) + 2 * whole_bytes(kv_heads)  # q and the result, k and v
    for seen in ranks(n).run(spans, TokenLayout.of("ulysses", n), kv_heads):
        assert [s.name for s in seen] == ["all_to_all"] * 8
        for phase in ("forward", "backward"):
            assert sum(s.nbytes for s in seen if s.phase == phase) == (n - 1) / n * traded / n


def test_a_ring_of_teams_sends_less_around_the_ring(ranks):
    for rank, seen in enumerate(ranks(4).run(spans, TokenLayout.of("zigzag", 4, 2))):
        sent = [s for s in seen if s.name == "send" and s.phase == "forward"]
        assert {s.peers for s in sent} == {((rank + 2) % 4,)}  # the same place in the other team
        assert sum(s.nbytes for s in sent) == 2 * whole_bytes(HEADS) / 2 / 2  # half the sequence of half the heads, k and v


def there_and_back(layout: TokenLayout) -> tuple[bool, list[int]]:
    axis = Mesh(cp=layout.ranks)["cp"]
    x = torch.arange(2 * 4 * 3 * 2).view(2, 4, 3, 2).double() + 1000 * axis.rank
    traded = heads_from_sequence(x, axis, layout.ulysses)
    return torch.equal(sequence_from_heads(traded, axis, layout.ulysses), x), list(traded.shape)


@pytest.mark.parametrize(("cut", "shape"), [(("ulysses", 4), [2, 1, 12, 2]), (("ring", 4, 2), [2, 2, 6, 2])])
def test_the_trade_of_tokens_for_heads_can_be_undone(ranks, cut, shape):
    assert ranks(4).run(there_and_back, TokenLayout.of(*cut)) == [(True, shape)] * 4


def test_one_rank_sends_nothing():
    assert [spans(TokenLayout.of(method, 1)) for method in ("ring", "zigzag", "ulysses")] == [[], [], []]

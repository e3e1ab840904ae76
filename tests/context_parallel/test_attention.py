"""Every way of cutting the sequence gives the attention, and the gradients, of one process."""

from unittest import mock

import pytest
import torch

from minipar import Mesh
from minipar.context_parallel import ContextAttention, Part, TokenLayout, ring
from tests.comm.gradients import error
from tests.context_parallel.whole import errors

LAYOUTS = {
    f"{method}-{n}{'-teams-of-' + str(team) if team > 1 else ''}": TokenLayout.of(method, n, team)
    for method, n, team in [
        *((method, n, 1) for method in ("ring", "zigzag", "ulysses") for n in (1, 2, 3, 4)),
        ("ring", 4, 2),
        ("zigzag", 4, 2),
    ]
}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_result_and_gradients_equal_one_process(ranks, name, causal):
    for found in ranks(LAYOUTS[name].ranks).run(errors, LAYOUTS[name], causal):
        assert max(found) < 1e-13


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("name", ["ring-2", "zigzag-3", "ulysses-4", "zigzag-4-teams-of-2"])
def test_shared_keys_and_values(ranks, name, kv_heads):
    for found in ranks(LAYOUTS[name].ranks).run(errors, LAYOUTS[name], True, kv_heads):
        assert max(found) < 1e-13


@pytest.mark.parametrize("name", ["ring-3", "zigzag-2", "ulysses-2"])
def test_scores_of_ten_thousand_do_not_overflow(ranks, name):
    for found in ranks(LAYOUTS[name].ranks).run(errors, LAYOUTS[name], True, 12, 50.0):
        assert max(found) < 1e-9  # the scores carry 1e4 * 2e-16


@pytest.mark.parametrize("name", ["ring-4", "zigzag-4", "zigzag-4-teams-of-2"])
def test_bfloat16_rounds_the_result_once(ranks, name):
    rounding = torch.finfo(torch.bfloat16).eps / 2
    for out, *gradients in ranks(4).run(errors, LAYOUTS[name], True, 12, 1.0, torch.bfloat16):
        assert out <= rounding * 1.001  # computed in float32, then rounded
        assert max(gradients) <= 2 * rounding  # the backward pass starts from the rounded result


@pytest.mark.parametrize("name", ["ring-4", "zigzag-4", "zigzag-4-teams-of-2"])
def test_float32_stays_near_float64(ranks, name):
    for found in ranks(4).run(errors, LAYOUTS[name], True, 12, 1.0, torch.float32):
        assert max(found) < 2e-6


def slopes(layout: TokenLayout) -> list[float]:
    """Of the loss along every element of q, k and v, against the gradient."""
    axis = Mesh(cp=layout.ranks)["cp"]
    attention = ContextAttention(axis, layout)
    tokens = 2 if layout.zigzag else 1
    fixed = [
        torch.randn(1, 6, tokens, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(axis.rank + i)) for i in range(3)
    ]
    found = []
    for place in range(3):
        found.append(error(lambda x, i=place: attention(*fixed[:i], x, *fixed[i + 1 :]), axis, (1, 6, tokens, 1), "own", "apart"))
    return found


@pytest.mark.parametrize("name", ["ring-2", "ring-3", "zigzag-2", "zigzag-3", "ulysses-2", "ulysses-3"])
def test_gradients_equal_the_slopes_of_the_loss(ranks, name):
    for found in ranks(LAYOUTS[name].ranks).run(slopes, LAYOUTS[name]):
        assert max(found) < 1e-7


def rounding_merge(a: Part | None, b: Part) -> Part:
    """The mistake: results are kept in the inputs' own precision between merges."""
    merged = ring_merge(a, b)
    return Part(merged.out.bfloat16().float(), merged.lse.bfloat16().float())


def overflowing_merge(a: Part | None, b: Part) -> Part:
    """The mistake: sums of exponentials without taking off the greatest score."""
    if a is None:
        return b
    total = a.lse.exp() + b.lse.exp()
    return Part((a.out * a.lse.exp().unsqueeze(-1) + b.out * b.lse.exp().unsqueeze(-1)) / total.unsqueeze(-1), total.log())


ring_merge = ring.merge


def with_merge(merge, layout: TokenLayout, scale: float, dtype: torch.dtype) -> list[float]:
    with mock.patch.object(ring, "merge", merge):
        return errors(layout, scale=scale, dtype=dtype)


def test_merging_in_low_precision_is_caught(ranks):
    wrong = ranks(4).run(with_merge, rounding_merge, LAYOUTS["ring-4"], 1.0, torch.bfloat16)
    assert max(out for out, *_ in wrong) > 1.2 * torch.finfo(torch.bfloat16).eps / 2


def test_an_overflowing_merge_is_caught(ranks):
    wrong = ranks(3).run(with_merge, overflowing_merge, LAYOUTS["ring-3"], 50.0, torch.float64)
    assert not all(max(found) < 1e-9 for found in wrong)


def with_wrong_order(layout: TokenLayout) -> list[float]:
    """The mistake: a zigzag rank takes its two chunks for neighbours in the sequence."""
    in_order = lambda layout, station: (2 * station, 2 * station + 1)  # noqa: E731
    own = layout.positions(24, Mesh(cp=layout.ranks)["cp"].rank)
    with mock.patch.object(TokenLayout, "chunks", in_order), mock.patch.object(TokenLayout, "positions", return_value=own):
        return errors(layout)


def test_a_zigzag_computed_in_the_wrong_order_is_caught(ranks):
    assert max(max(found) for found in ranks(2).run(with_wrong_order, LAYOUTS["zigzag-2"])) > 1e-2

"""Parts of an attention put together: exact, in any order, for any split of the keys."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minipar.context_parallel import attend, attend_backward, merge

KEYS = 7


def tensors(scale: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(1, 2, n, 3, generator=generator, dtype=torch.float64) * scale for n in (4, KEYS, KEYS, 4)]


@settings(deadline=None, max_examples=40)
@given(
    cuts=st.lists(st.integers(1, KEYS - 1), unique=True),
    order=st.randoms(use_true_random=False),
    scale=st.sampled_from([1e-3, 1.0, 60.0]),
)
def test_any_split_of_the_keys_merges_to_the_whole(cuts, order, scale):
    q, k, v, _ = tensors(scale)
    edges = [0, *sorted(cuts), KEYS]
    pieces = list(itertools.pairwise(edges))
    order.shuffle(pieces)
    total = None
    for start, end in pieces:
        total = merge(total, attend(q, k[:, :, start:end], v[:, :, start:end], masked=False))
    torch.testing.assert_close(total.out, F.scaled_dot_product_attention(q, k, v), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(total.lse, (q @ k.mT * 3**-0.5).logsumexp(-1), rtol=1e-12, atol=1e-12)


def test_a_part_that_adds_nothing_changes_nothing():
    q, k, v, _ = tensors(1.0)
    whole = attend(q, k, v, masked=False)
    far_below = attend(q, k, v, masked=False)._replace(lse=torch.full_like(whole.lse, -1e30))
    assert torch.equal(merge(whole, far_below).out, whole.out)
    assert torch.equal(merge(far_below, whole).lse, whole.lse)


@pytest.mark.parametrize("masked", [True, False])
def test_backward_of_the_parts_adds_up_to_that_of_the_whole(masked):
    q, k, v, grad = tensors(1.0)
    k, v = k[:, :, :4], v[:, :, :4]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=masked)
    out.backward(grad)
    part = attend(q, k, v, masked)
    delta = (grad * part.out).sum(-1)
    for got, leaf in zip(attend_backward(q, k, v, masked, part.lse, grad, delta), leaves, strict=True):
        torch.testing.assert_close(got, leaf.grad, rtol=1e-12, atol=1e-13)


def test_low_precision_parts_are_kept_in_float32():
    q, k, v, _ = (x.bfloat16() for x in tensors(1.0))
    part = attend(q, k, v, masked=False)
    assert part.out.dtype == part.lse.dtype == torch.float32

"""A MoE layer against the plainest way to write it: every token through its experts, one at a time."""

import pytest
import torch
import torch.nn.functional as F

from minipar import GPTConfig
from minipar.expert_parallel import MoE, MoEOptions
from minipar.expert_parallel.experts import Experts


def plain(layer: MoE, x: torch.Tensor) -> torch.Tensor:
    """One token and one expert at a time, for a softmax router with renormalised weights."""
    out = []
    for token in x:
        probs = F.linear(token, layer.router.weight).softmax(0)
        best = probs.topk(layer.router.k)
        y = torch.zeros_like(token)
        for share, e in zip(best.values / best.values.sum(), best.indices, strict=True):
            hidden = F.silu(token @ layer.experts.gate[e]) * (token @ layer.experts.up[e])
            y = y + share * (hidden @ layer.experts.down[e])
        if layer.shared is not None:
            y = y + (F.silu(token @ layer.shared.gate[0]) * (token @ layer.shared.up[0])) @ layer.shared.down[0]
        out.append(y)
    return torch.stack(out)


@pytest.mark.parametrize(("experts", "k", "shared"), [(1, 1, 0), (4, 2, 0), (5, 3, 2), (64, 4, 1)])
def test_outputs_and_gradients_equal_the_plain_loop(experts, k, shared):
    torch.manual_seed(0)
    config = GPTConfig(
        width=6, heads=1, ffn=5, experts=experts, top_k=k, moe=MoEOptions(balance=0.0, shared=shared, renormalise=True)
    )
    layer = MoE(config).double()
    for param in layer.parameters():
        param.data *= 30
    x = torch.randn(23, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(23, 6, dtype=torch.float64)
    got, expected = layer(x), plain(layer, x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    inputs = [x, *layer.parameters()]
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (got, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_gradients_of_the_grouped_product():
    torch.manual_seed(0)
    experts = Experts(4, 3, 2).double()
    for param in experts.parameters():
        param.data *= 50
    rows = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    names = ("gate", "up", "down")

    def product(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(experts, dict(zip(names, weights, strict=True)), (x, [3, 0, 4, 0]))

    assert torch.autograd.gradcheck(product, (rows, *(experts.get_parameter(n) for n in names)))


def test_an_expert_without_a_row_has_a_gradient_of_zeros():
    experts = Experts(3, 4, 4)
    experts(torch.randn(5, 4), [5, 0, 0]).sum().backward()
    for param in experts.parameters():
        assert param.grad[0].any()
        assert not param.grad[1:].any()


def test_nothing_is_kept_for_a_backward_that_will_not_come():
    experts = Experts(2, 4, 4)
    with torch.no_grad():
        y = experts(torch.randn(5, 4), [2, 3])
    assert y.grad_fn is None
    assert not y.requires_grad

"""The split backward: the same gradients, the weights' share of them later."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from minipar.pipeline_parallel.weight_queue import WeightQueue, deferring


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters()] + [x.grad]


def make() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3, bias=False)).double()
    return model, torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)


def test_split_and_whole_backward_give_the_same_gradients() -> None:
    model, x = make()
    model(x).sin().sum().backward()
    expected = gradients(model, x)
    model, x = make()
    queue = WeightQueue()
    with deferring(queue):
        y = model(x).sin().sum()
    with queue.collect(0):
        y.backward()
    assert model[0].weight.grad is None  # not yet
    assert model[3].weight.grad is None
    assert torch.equal(x.grad, expected[-1])
    queue.run(0)
    for got, wanted in zip(gradients(model, x), expected, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-12)
        assert not got.requires_grad  # or it would keep the whole graph alive


def test_outside_collect_the_backward_is_whole() -> None:
    model, x = make()
    queue = WeightQueue()
    with deferring(queue):
        y = model(x).sum()
    y.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert len(queue) == 0


def test_microbatches_add_up_in_any_order() -> None:
    model, x = make()
    queue = WeightQueue()
    outputs = []
    with deferring(queue):
        outputs = [model(part).sin().sum() for part in x]
    for k, y in enumerate(outputs):
        with queue.collect(k):
            y.backward()
    for k in (1, 0):
        queue.run(k)
    got = gradients(model, x)
    model, x = make()
    model(x).sin().sum().backward()
    for a, b in zip(got, gradients(model, x), strict=True):
        assert torch.allclose(a, b, rtol=1e-12)


def test_a_parameter_used_twice_gets_both_gradients() -> None:
    """As an embedding that is also the head: once looked up, once a matrix of a linear layer."""
    weight = nn.Parameter(torch.randn(5, 3, dtype=torch.float64))

    def loss() -> torch.Tensor:
        return F.linear(F.embedding(torch.tensor([1, 4]), weight), weight=weight).sin().sum()

    loss().backward()
    expected, weight.grad = weight.grad, None
    queue = WeightQueue()
    with deferring(queue):
        y = loss()
    with queue.collect("any"):
        y.backward()
    queue.run("any")
    assert torch.allclose(weight.grad, expected, rtol=1e-12)


def test_a_recomputed_layer_is_split_as_well() -> None:
    model, x = make()
    model(x).sin().sum().backward()
    expected = gradients(model, x)
    model, x = make()
    queue = WeightQueue()
    with deferring(queue):
        y = checkpoint(model, x, use_reentrant=False).sin().sum()
    with deferring(queue), queue.collect(0):
        torch.autograd.backward(get_gradient_edge(y), torch.ones_like(y))
    assert model[0].weight.grad is None
    queue.run(0)
    for got, wanted in zip(gradients(model, x), expected, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-12)


def test_weights_may_not_change_between_forward_and_backward() -> None:
    model, x = make()
    with deferring(WeightQueue()):
        y = model(x).sum()
    with torch.no_grad():
        model[0].weight += 1
    with pytest.raises(RuntimeError, match="a weight was changed"):
        y.backward()


@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_frozen_parameters_get_no_gradient(frozen: str) -> None:
    layer = nn.Linear(3, 2).double()
    for name in ("weight", "bias") if frozen == "both" else (frozen,):
        getattr(layer, name).requires_grad_(False)
    queue = WeightQueue()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    with deferring(queue):
        y = layer(x).sin().sum()
    with queue.collect(0):
        y.backward()
    queue.run(0)
    assert (layer.weight.grad is None) == (frozen != "bias")
    assert (layer.bias.grad is None) == (frozen != "weight")
    assert x.grad is not None

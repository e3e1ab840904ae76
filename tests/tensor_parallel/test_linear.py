"""Column- and row-parallel products: values, gradients, and when the gradient is sent."""

from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from minipar import Mesh, comm
from minipar.comm import twins
from minipar.parameters import full_tensor
from minipar.tensor_parallel import ColumnParallelLinear, Region, RowParallelLinear
from tests.comm.gradients import error


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(inputs)
        return nn.Linear(inputs, outputs, bias=bias, dtype=torch.float64)


def layer_error(n: int, kind: str, bias: bool = True) -> float:
    """How far a layer's outputs and parameter gradients are from the whole layer's, for the same loss."""
    mesh = Mesh(tp=n)
    axis = mesh["tp"]
    whole, plain = linear(7, 5, bias), linear(7, 5, bias)
    layer = {
        "column": lambda: ColumnParallelLinear(plain, Region(axis)),
        "column-gathered": lambda: ColumnParallelLinear(linear(7, 5, bias), Region(axis), gather_output=True),
        "row": lambda: RowParallelLinear(plain, Region(axis)),
    }[kind]()
    x = torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = whole(x)
    (expected**2).sum().backward()
    if kind == "row":
        got = layer(x.tensor_split(n, -1)[axis.rank])
        (got**2).sum().backward()
    else:
        got = layer(x)
        twins.reduce((got**2).sum(), axis).backward()
        expected = expected.tensor_split(n, -1)[axis.rank]
    grads = [(full_tensor(p.grad, p, mesh), dict(whole.named_parameters())[name].grad) for name, p in layer.named_parameters()]
    return max((a - b).abs().max().item() for a, b in [(got, expected), *grads])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind", ["column", "row"])
def test_layer_equals_the_whole_one(ranks, kind, n, bias):
    assert max(ranks(n).run(layer_error, n, kind, bias)) < 1e-12


def gathered_error(n: int) -> float:
    """Column, gathered, and row with a split input: every tensor in between is whole."""
    mesh = Mesh(tp=n)
    first, second = linear(4, 6), linear(6, 4)
    column = ColumnParallelLinear(linear(4, 6), Region(mesh["tp"]), gather_output=True)
    row = RowParallelLinear(linear(6, 4), Region(mesh["tp"]), split_input=True)
    x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(1, 2, 4).requires_grad_()
    y = x.detach().clone().requires_grad_()
    expected, got = second(first(x).tanh()), row(column(y).tanh())
    (expected**2).sum().backward()
    (got**2).sum().backward()
    pairs = [(got, expected), (y.grad, x.grad)]
    for whole, split in ((first, column), (second, row)):
        pairs += [
            (full_tensor(split.get_parameter(name).grad, split.get_parameter(name), mesh), p.grad)
            for name, p in whole.named_parameters()
        ]
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_gathered_output_and_split_input_equal_the_whole_layers(ranks, n):
    assert max(ranks(n).run(gathered_error, n)) < 1e-12


def gradient_errors(n: int) -> dict[str, float]:
    axis = Mesh(tp=n)["tp"]
    errors = {}
    for name, options in {
        "plain": {"overlap": False},
        "overlap": {},
        "sequence-plain": {"overlap": False, "sequence_parallel": True},
        "sequence": {"sequence_parallel": True},
        "regather": {"sequence_parallel": True, "regather": True},
    }.items():
        region = Region(axis, **options)
        outside = "own" if region.sequence_parallel else "replicated"
        column = ColumnParallelLinear(linear(3, 6), region)
        errors["column-" + name] = error(column, axis, (1, 2, 3), outside, "apart")
        row = RowParallelLinear(linear(2 * n, 3), region)
        errors["row-" + name] = error(row, axis, (1, n, 2), "own", "apart" if region.sequence_parallel else "alike")
    errors["gathered"] = error(
        ColumnParallelLinear(linear(3, 6), Region(axis), gather_output=True), axis, (1, 2, 3), "replicated", "alike"
    )
    errors["split"] = error(RowParallelLinear(linear(6, 3), Region(axis), split_input=True), axis, (1, 2, 6), "replicated", "alike")
    return errors


@pytest.mark.parametrize("n", [2, 3])
def test_gradients_equal_the_slopes_of_the_loss(ranks, n):
    for errors in ranks(n).run(gradient_errors, n):
        assert len(errors) == 12
        assert {name: e for name, e in errors.items() if e > 1e-7} == {}


class Products(TorchDispatchMode):
    """Writes down every matrix product, in order."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm_.default, torch.ops.aten.addmm.default):
            self.log.append("product")
        return func(*args, **(kwargs or {}))


def order_of_backward(options: dict, call: str) -> list[str]:
    """Products and communication of one column-parallel layer's backward pass."""
    layer = ColumnParallelLinear(linear(4, 4), Region(Mesh(tp=2)["tp"], **options))
    y = layer(torch.ones(1, 2, 4, dtype=torch.float64, requires_grad=True))
    log: list[str] = []
    real, real_wait = getattr(comm, call), comm.Pending.wait

    def launch(*args):
        log.append("launch")
        return real(*args)

    def wait(pending):
        log.append("wait")
        return real_wait(pending)

    with mock.patch.object(comm, call, launch), mock.patch.object(comm.Pending, "wait", wait), Products(log):
        y.sum().backward()
    return log


@pytest.mark.parametrize(
    ("options", "call"),
    [({}, "async_all_reduce_"), ({"sequence_parallel": True}, "async_reduce_scatter")],
    ids=["tensor", "sequence"],
)
def test_the_input_gradient_travels_while_the_weight_gradient_is_computed(ranks, options, call):
    assert ranks(2).run(order_of_backward, options, call) == [["product", "launch", "product", "wait"]] * 2


def refusals() -> list[str]:
    axis = Mesh(tp=2)["tp"]
    calls = [
        lambda: ColumnParallelLinear(nn.Linear(4, 1), Region(axis)),
        lambda: ColumnParallelLinear(nn.Linear(4, 5), Region(axis), gather_output=True),
        lambda: RowParallelLinear(nn.Linear(1, 4), Region(axis)),
        lambda: RowParallelLinear(nn.Linear(5, 4), Region(axis), split_input=True)(torch.ones(1, 1, 5)),
        lambda: Region(axis, regather=True),
    ]
    said = []
    for call in calls:
        with pytest.raises(ValueError) as refused:  # noqa: PT011 - the caller compares the messages
            call()
        said.append(str(refused.value))
    return said


def test_what_cannot_be_cut_is_refused_with_the_reason(ranks):
    expected = [
        "1 outputs cannot be split over the 2 ranks of axis tp",
        "only equal pieces can be gathered: 5 outputs over 2 ranks",
        "1 inputs cannot be split over the 2 ranks of axis tp",
        "5 along dim -1 does not split over the 2 ranks",
        "set sequence_parallel=True and overlap=True",
    ]
    for said in ranks(2).run(refusals):
        for message, part in zip(said, expected, strict=True):
            assert part in message

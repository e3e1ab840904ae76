"""Buckets: what leaves when, in which order, with how many bytes; and every way in which a step could hang or mix gradients."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from minipar import Mesh, comm
from minipar.data_parallel import Buckets, buckets, start_equal
from minipar.data_parallel.buckets import Queue
from minipar.parameters import sum_over
from minipar.trace import tracer

LAYERS = 4
LAYER_BYTES = (9 * 9 + 9) * 8


def chain(order=range(LAYERS)) -> nn.ModuleDict:
    """Layers that run as 0, 1, 2, 3 but are registered in ``order``; 9 x 9 weights and biases of 9."""
    model = nn.ModuleDict({str(i): nn.Linear(9, 9, dtype=torch.float64) for i in order})
    for i in range(LAYERS):
        for param in model[str(i)].parameters():
            nn.init.normal_(param, generator=torch.Generator().manual_seed(i))
    return model


def forward(model: nn.ModuleDict, x: torch.Tensor, skip=()) -> torch.Tensor:
    for i in range(LAYERS):
        if i not in skip:
            x = torch.tanh(model[str(i)](x))
    return x.sum()


def own(rank: int) -> torch.Tensor:
    return torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(100 + rank))


def expected(n: int, skips=None) -> dict[str, torch.Tensor]:
    """The gradients of all ranks, computed by one."""
    model = chain()
    for rank in range(n):
        forward(model, own(rank), (skips or {}).get(rank, ())).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def differing(model: nn.Module, want: dict[str, torch.Tensor]) -> list[str]:
    pairs = [(name, param.grad, want[name]) for name, param in model.named_parameters()]
    return [name for name, got, right in pairs if got is None or not torch.allclose(got, right, rtol=1e-12, atol=1e-12)]


@contextmanager
def diary():
    """The elements of every all-reduce that is launched, and "gradient" for each gradient that came, in order."""
    events: list[int | str] = []
    real = comm.async_all_reduce_

    def async_all_reduce_(x, axis=None, op="sum"):
        events.append(x.numel())
        return real(x, axis, op)

    comm.async_all_reduce_ = async_all_reduce_
    try:
        yield events
    finally:
        comm.async_all_reduce_ = real


def early(events: list[int | str]) -> int:
    """How many launches came before the last gradient: what the backward pass can hide."""
    last = max((i for i, event in enumerate(events) if event == "gradient"), default=0)
    return sum(event != "gradient" for event in events[:last])


def steps(bucket_bytes: float, order=range(LAYERS), count: int = 3, skips=None, axis: str = "dp") -> dict:
    rank, n = comm.world().rank, comm.world().size
    model = chain(order[rank] if isinstance(order, dict) else order)
    with diary() as events:
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(lambda _: events.append("gradient"))
        buckets = Buckets(model, Mesh(**{axis: n}), bucket_bytes)
        wrong, diaries = [], []
        for _ in range(count):
            events.clear()
            model.zero_grad()
            with buckets.gather():
                forward(model, own(rank), (skips or {}).get(rank, ())).backward()
            diaries.append(list(events))
            wrong.append(differing(model, expected(n, skips)))
    return {"wrong": wrong, "diaries": diaries, "early": [early(events) for events in diaries]}


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("bucket_bytes", [1, LAYER_BYTES, 1e9])
def test_gradients_are_the_sums_of_all_ranks(ranks, n, bucket_bytes):
    for got in ranks(n).run(steps, bucket_bytes):
        assert got["wrong"] == [[], [], []]


def test_buckets_leave_during_backward(ranks):
    for got in ranks(2).run(steps, LAYER_BYTES):
        assert got["early"] == [LAYERS - 1] * 3  # all but the last, which has to wait for the last gradient
        assert [sum(event != "gradient" for event in events) for events in got["diaries"]] == [LAYERS] * 3


class InForwardOrder(Queue):
    """The mistake: buckets in the order in which the forward pass runs."""

    def fill(self, order):
        super().fill(list(self.params))


def steps_of_mistake() -> dict:
    buckets.Queue = InForwardOrder
    try:
        return steps(LAYER_BYTES)
    finally:
        buckets.Queue = Queue


def test_buckets_in_forward_order_are_found_out_none_leaves_early(ranks):
    for got in ranks(2).run(steps_of_mistake):
        assert got["wrong"] == [[], [], []]  # the gradients are right; only the overlap is lost
        assert got["early"] == [0, 0, 0]


@pytest.mark.parametrize("order", [[3, 0, 2, 1], {0: [0, 1, 2, 3], 1: [2, 3, 1, 0], 2: [3, 1, 0, 2]}])
def test_modules_in_another_order_or_another_one_on_each_rank(ranks, order):
    for got in ranks(3).run(steps, LAYER_BYTES, order):
        assert got["wrong"] == [[], [], []]
        assert got["early"][1:] == [LAYERS - 1] * 2  # after the first step the buckets follow the order of arrival


@pytest.mark.parametrize("skips", [{0: (2,)}, {0: (3,), 1: (0,)}, {0: (1,), 1: (1,)}])
def test_parameters_that_some_or_all_ranks_do_not_use(ranks, skips):
    for got in ranks(2).run(steps, LAYER_BYTES, range(LAYERS), 3, skips):
        assert got["wrong"] == [[], [], []]


def only_one_works() -> list[str]:
    model = chain()
    buckets = Buckets(model, Mesh(dp=2), LAYER_BYTES)
    with buckets.gather():
        if comm.world().rank == 0:
            forward(model, own(0)).backward()
    return differing(model, expected(1))


def test_a_rank_that_runs_no_backward_at_all_holds_up_nobody(ranks):
    assert ranks(2).run(only_one_works) == [[], []]


@pytest.mark.parametrize("axis", ["dp", "cp"])
def test_each_axis_alone_is_synced(ranks, axis):
    for got in ranks(2).run(steps, LAYER_BYTES, range(LAYERS), 2, None, axis):
        assert got["wrong"] == [[], []]


def test_an_axis_that_a_gradient_is_not_summed_over_sends_nothing(ranks):
    for got in ranks(2).run(steps, LAYER_BYTES, range(LAYERS), 1, None, "tp"):
        assert got["diaries"] == [["gradient"] * 2 * LAYERS]


def accumulated() -> tuple[list[str], int, float]:
    rank = comm.world().rank
    model = chain()
    buckets = Buckets(model, Mesh(dp=2), LAYER_BYTES)
    want = {name: 3 * grad for name, grad in expected(2).items()}
    with tracer.watch() as spans:
        for _ in range(2):
            model.zero_grad()
            for _ in range(2):
                forward(model, own(rank)).backward()
            before = len(spans)
            with buckets.gather():
                forward(model, own(rank)).backward()
    return differing(model, want), before, sum(s.nbytes for s in spans if s.name == "all_reduce") / 2


def test_microbatches_accumulate_and_only_the_last_one_sends(ranks):
    for wrong, calls, sent in ranks(2).run(accumulated):
        assert wrong == []
        assert calls == LAYERS  # those of the first step; the accumulating passes of the second sent nothing
        assert sent == LAYERS * LAYER_BYTES  # 2 (n - 1) / n of the gradients is all of them at n = 2


def views() -> list[bool]:
    model = chain()
    buckets = Buckets(model, Mesh(dp=2), LAYER_BYTES)
    with buckets.gather():
        forward(model, own(0)).backward()
    flats = [bucket.flat for queue in buckets.queues for bucket in queue.buckets]
    return [any(p.grad.untyped_storage().data_ptr() == f.untyped_storage().data_ptr() for f in flats) for p in model.parameters()]


def test_gradients_are_views_of_the_buckets(ranks):
    assert ranks(2).run(views) == [[True] * 2 * LAYERS] * 2


def zeroed_in_place() -> list[list[str]]:
    rank = comm.world().rank
    model = chain()
    buckets = Buckets(model, Mesh(dp=2), LAYER_BYTES)
    wrong = []
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        with buckets.gather():
            forward(model, own(rank)).backward()
        wrong.append(differing(model, expected(2)))
    return wrong


def test_gradients_may_be_zeroed_in_place_instead_of_dropped(ranks):
    assert ranks(2).run(zeroed_in_place) == [[[], [], []]] * 2


def twice() -> str:
    model = chain()
    buckets = Buckets(model, Mesh(dp=2), LAYER_BYTES)
    try:
        with buckets.gather():
            forward(model, own(0)).backward()
            forward(model, own(0)).backward()
    except RuntimeError as e:
        return str(e)
    return ""


def test_writing_into_a_bucket_that_has_left_is_refused(ranks):
    for said in ranks(2).run(twice):
        assert "came twice" in said


def unlike() -> str:
    model = nn.Linear(3, 2 + comm.world().rank)
    try:
        Buckets(model, Mesh(dp=2))
    except ValueError as e:
        return str(e)
    return ""


def test_replicas_of_different_shapes_are_refused_by_name(ranks):
    for said in ranks(2).run(unlike):
        assert "bias is [3] on rank 1 and [2] on rank 0" in said or "bias is [2] on rank 0 and [3] on rank 1" in said


class Mixed(nn.Module):
    """Two dtypes, and one parameter that is summed over another axis."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(5))
        self.b = nn.Parameter(torch.ones(5, dtype=torch.float64))
        self.own = nn.Parameter(torch.ones(5))
        sum_over(self.own, ("edp",))
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("mean", torch.full((2,), float(comm.world().rank)))


def mixed() -> list:
    mesh = Mesh(dp=2, ep=2)  # each rank its own experts: nothing to sum over edp
    rank, model = comm.world().rank, Mixed()
    with torch.no_grad():
        model.a.add_(rank)
    start_equal(model, mesh)
    buckets = Buckets(model, mesh)
    with buckets.gather():
        ((model.a + model.own).sum() + model.b.sum()).mul(rank + 1).backward()
    grads = [param.grad[0].item() for param in (model.a, model.b, model.own)]
    return [model.a.data[0].item(), model.mean[0].item(), *grads, model.frozen.grad]


def test_dtypes_axes_frozen_parameters_and_buffers(ranks):
    first, second = ranks(2).run(mixed)
    assert first == [1.0, 0.0, 3.0, 3.0, 1.0, None]
    assert second == [1.0, 0.0, 3.0, 3.0, 2.0, None]

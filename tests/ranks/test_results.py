"""What a healthy run gives back."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist


def test_each_rank_returns_its_own_result(ranks):
    assert ranks(3).run(dist.get_rank) == [0, 1, 2]


def test_the_process_group_is_ready(ranks):
    def total(x):
        dist.all_reduce(x)
        return x

    out = ranks(3).run(total, torch.ones(4))
    assert [y.tolist() for y in out] == [[3.0] * 4] * 3


def test_a_function_of_the_notebook_travels_with_what_it_uses(ranks):
    offset = 10
    assert ranks(2).run(lambda x: x + offset + dist.get_rank(), 1) == [11, 12]


def test_a_redefined_function_runs_as_it_is_now(ranks):
    def f():
        return "old"

    assert ranks(2).run(f) == ["old"] * 2

    def f():
        return "new"

    assert ranks(2).run(f) == ["new"] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.int8, torch.complex64])
def test_tensors_come_back_equal(ranks, dtype):
    x = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    for y in ranks(2).run(lambda: x.t()):
        assert y.dtype == dtype
        assert torch.equal(y, x.t())


def test_a_view_sends_only_what_it_shows(ranks):
    from course.ranks import wire

    assert len(wire.dumps(torch.zeros(1_000_000)[:2])) < 1000


def test_parameters_and_tied_weights_stay_what_they_are(ranks):
    layer = torch.nn.Linear(2, 2)
    layer.twin = layer.weight
    for back in ranks(2).run(lambda: layer):
        assert back.twin is back.weight
        assert isinstance(back.weight, torch.nn.Parameter)
        assert back.weight.requires_grad
        assert torch.equal(back.weight, layer.weight)


def test_a_result_of_100_mb_comes_back_whole(ranks):
    def large():
        return torch.arange(25_000_000, dtype=torch.int32) + dist.get_rank()

    out = ranks(2).run(large)
    assert [y[-1].item() - 24_999_999 for y in out] == [0, 1]


def test_an_argument_of_100_mb_arrives_whole(ranks):
    x = torch.arange(25_000_000, dtype=torch.int32)
    assert ranks(2).run(lambda: (x.sum().item(), len(x))) == [(x.sum().item(), len(x))] * 2

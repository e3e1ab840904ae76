"""Every communication's gradient, against numbers moved by hand (PITFALL: backward sums once more, or once less)."""

from functools import partial

import pytest
import torch

from minipar import Mesh
from minipar.comm import twins
from minipar.mesh import Axis, world
from tests.comm.gradients import error

TWINS = {  # operation, what its input is, how its output is used
    "copy": (twins.copy, "replicated", "apart"),
    "reduce": (twins.reduce, "own", "alike"),
    "gather-dim0": (partial(twins.gather, dim=0), "own", "alike"),
    "gather-last": (partial(twins.gather, dim=-1), "own", "alike"),
    "split-dim0": (partial(twins.split, dim=0), "replicated", "apart"),
    "split-last": (partial(twins.split, dim=-1), "replicated", "apart"),
    "gather_for_sharded-dim0": (partial(twins.gather_for_sharded, dim=0), "own", "apart"),
    "gather_for_sharded-last": (partial(twins.gather_for_sharded, dim=-1), "own", "apart"),
    "reduce_scatter-dim0": (partial(twins.reduce_scatter, dim=0), "own", "apart"),
    "reduce_scatter-last": (partial(twins.reduce_scatter, dim=-1), "own", "apart"),
    "all_to_all": (twins.all_to_all, "own", "apart"),
    "broadcast-first": (partial(twins.broadcast, src=0), "own", "apart"),
    "broadcast-last": (lambda x, axis: twins.broadcast(x, axis, src=axis.size - 1), "own", "apart"),
}


def gradient_error(name: str) -> float:
    op, kind, used = TWINS[name]
    shape = (2, 6) if name.endswith("-last") else (6, 2)  # what is split divides by 1, 2 and 3
    return error(lambda x: op(x, world()), world(), shape, kind, used)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", TWINS)
def test_gradient_equals_the_slope_of_the_loss(ranks, name, n):
    assert max(ranks(n).run(gradient_error, name)) < 1e-7


def middle_dim_error() -> float:
    axis = world()
    there = error(lambda x: twins.gather_for_sharded(x, axis, 1), axis, (2, 1, 2), "own", "apart")
    return max(there, error(lambda x: twins.reduce_scatter(x, axis, 1), axis, (2, 2, 2), "own", "apart"))


def test_gradient_along_a_dimension_in_the_middle(ranks):
    assert max(ranks(2).run(middle_dim_error)) < 1e-7


def uneven_all_to_all(counts: list[list[int]]) -> float:
    axis = world()
    to, back = counts[axis.rank], [row[axis.rank] for row in counts]
    return error(lambda x: twins.all_to_all(x, axis, to, back), axis, (5, 2), "own", "apart")


@pytest.mark.parametrize("counts", [[[2, 3], [5, 0]], [[0, 1, 4], [5, 0, 0], [1, 2, 2]]], ids=["2-ranks", "3-ranks"])
def test_gradient_of_an_uneven_all_to_all_takes_the_same_way_back(ranks, counts):
    assert max(ranks(len(counts)).run(uneven_all_to_all, counts)) < 1e-7


def joint_axis_error() -> float:
    axis = Mesh(dp=2, tp=2)["dp", "tp"]
    return error(lambda x: twins.reduce_scatter(x, axis, 1), axis, (2, 4), "own", "apart")


def test_gradient_over_a_joint_axis(ranks):
    assert max(ranks(4).run(joint_axis_error)) < 1e-7


def gather_twice_used(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """One tensor that takes two ways: its gradient is the sum of both."""
    return twins.gather_for_sharded(x, axis, 0) * twins.gather_for_sharded(x, axis, 0).sin()


def twice_used_error() -> float:
    return error(lambda x: gather_twice_used(x, world()), world(), (2, 3), "own", "apart")


def test_gradient_of_a_tensor_used_twice(ranks):
    assert max(ranks(2).run(twice_used_error)) < 1e-7


class SumsAgain(torch.autograd.Function):
    """The mistake: an all-reduce whose backward is one more all-reduce."""

    @staticmethod
    def forward(ctx, x):
        return twins.reduce(x.detach(), world())

    @staticmethod
    def backward(ctx, grad):
        return twins.reduce(grad, world())


def wrong_errors() -> tuple[float, float, float]:
    axis = world()
    return (
        error(SumsAgain.apply, axis, (3,), "own", "alike"),
        error(lambda x: x, axis, (3,), "replicated", "apart"),  # copy forgotten
        error(lambda x: twins.gather(x, axis, 0), axis, (3,), "own", "apart"),  # gather where gather_for_sharded belongs
    )


@pytest.mark.parametrize("n", [2, 3])
def test_the_check_itself_catches_the_classic_mistakes(ranks, n):
    for errors in ranks(n).run(wrong_errors):
        assert min(errors) > 0.1

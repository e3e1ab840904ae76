"""What each call returns, on which ranks, in which shape and type; what it refuses."""

import pytest
import torch

from minipar import Mesh, comm
from minipar.comm import twins
from minipar.mesh import world


def own(shape=(6, 2), dtype=torch.float64) -> torch.Tensor:
    return torch.arange(12, dtype=dtype).view(shape) + 100 * world().rank


def every_call() -> dict[str, torch.Tensor]:
    x, axis = own(), world()
    around = ((axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size)
    results = {
        "sum": comm.all_reduce(x, axis),
        "max": comm.all_reduce(x, axis, "max"),
        "min": comm.all_reduce(x, axis, "min"),
        "gather0": comm.all_gather(x, axis),
        "gather1": comm.all_gather(x, axis, 1),
        "scatter0": comm.reduce_scatter(x, axis),
        "scatter1": comm.reduce_scatter(x.T, axis, -1),
        "to_all": comm.all_to_all(x, axis),
        "broadcast": comm.broadcast(x, axis, axis.size - 1),
    }
    if axis.size > 1:
        results["exchange"] = comm.exchange([(x, around[0])], [(torch.empty_like(x), around[1])], axis)[0]
    results["untouched"] = x
    return results


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_call_returns_what_its_name_says(ranks, n):
    inputs = [torch.arange(12, dtype=torch.float64).view(6, 2) + 100 * r for r in range(n)]
    total = torch.stack(inputs).sum(0)
    for rank, got in enumerate(ranks(n).run(every_call)):
        expected = {
            "sum": total,
            "max": inputs[-1],
            "min": inputs[0],
            "gather0": torch.cat(inputs),
            "gather1": torch.cat(inputs, 1),
            "scatter0": total.chunk(n)[rank],
            "scatter1": total.T.chunk(n, 1)[rank],
            "to_all": torch.cat([x.chunk(n)[rank] for x in inputs]),
            "broadcast": inputs[-1],
            "untouched": inputs[rank],
        }
        if n > 1:
            expected["exchange"] = inputs[(rank - 1) % n]
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(got[name], value), name


def low_precision(dtype: torch.dtype) -> list[torch.Tensor]:
    x, axis = own(dtype=dtype), world()
    return [comm.all_reduce(x, axis), comm.all_gather(x, axis), comm.reduce_scatter(x, axis), comm.all_to_all(x, axis)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_the_type_of_the_elements_survives(ranks, dtype):
    for results in ranks(2).run(low_precision, dtype):
        assert [x.dtype for x in results] == [dtype] * 4
        assert torch.equal(results[0], (torch.arange(12).view(6, 2) * 2 + 100).to(dtype))


def joint_sums() -> dict[str, float]:
    mesh = Mesh(dp=2, tp=2)
    mine = torch.tensor([10.0**mesh.world.rank])
    return {name: comm.all_reduce(mine, mesh[tuple(name.split("+"))]).item() for name in ("dp", "tp", "dp+tp")}


def test_a_joint_axis_sums_over_both(ranks):
    assert ranks(4).run(joint_sums) == [
        {"dp": 101, "tp": 11, "dp+tp": 1111},
        {"dp": 1010, "tp": 11, "dp+tp": 1111},
        {"dp": 101, "tp": 1100, "dp+tp": 1111},
        {"dp": 1010, "tp": 1100, "dp+tp": 1111},
    ]


def waited_twice() -> bool:
    pending = comm.async_all_gather(own(), world())
    first = pending.wait()
    return pending.wait() is first and pending.done()


def test_an_async_call_gives_its_result_as_often_as_asked(ranks):
    assert ranks(2).run(waited_twice) == [True, True]


@pytest.mark.parametrize("call", [comm.all_reduce_, comm.async_all_reduce_, comm.broadcast_], ids=lambda f: f.__name__)
def test_in_place_is_refused_where_autograd_needs_the_tensor(call):
    with pytest.raises(ValueError, match="autograd still needs"):
        call(torch.ones(2, requires_grad=True), world())
    used = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(ValueError, match="twins"):
        call(used, world())


COLLECTIVES = (
    *(comm.all_reduce, comm.all_reduce_, comm.async_all_reduce_, comm.all_gather, comm.async_all_gather),
    *(comm.reduce_scatter, comm.async_reduce_scatter, comm.all_to_all, comm.async_all_to_all, comm.broadcast, comm.broadcast_),
)


@pytest.mark.parametrize("call", COLLECTIVES, ids=lambda f: f.__name__)
def test_what_is_no_tensor_or_no_axis_is_refused(call):
    with pytest.raises(TypeError, match="send each other tensors, not int"):
        call(3, world())
    with pytest.raises(TypeError, match=r"an axis is one of a mesh, .* it is not 'max'"):
        call(torch.ones(2), "max")


@pytest.mark.parametrize("call", [comm.all_reduce_, comm.broadcast_], ids=lambda f: f.__name__)
def test_in_place_is_refused_on_a_tensor_that_is_not_contiguous(call):
    with pytest.raises(ValueError, match="contiguous"):
        call(torch.ones(2, 3).T, world())


def used_twice() -> tuple[bool, bool]:
    """A tensor whose value autograd saved (for ``x * x``) goes through every twin that communicates in forward."""
    axis = world()
    x = own().requires_grad_()
    y = x * 1
    squares = y * y
    for twin in (twins.copy, twins.reduce, twins.gather, twins.split, twins.gather_for_sharded, twins.reduce_scatter):
        twin(y, axis)
    before = torch.equal(y, own())
    squares.sum().backward()  # would say so if a saved tensor had been overwritten
    return before, torch.equal(x.grad, 2 * own())


def test_no_twin_overwrites_a_tensor_that_is_still_used(ranks):
    assert ranks(2).run(used_twice) == [(True, True)] * 2


def gradient_still_used() -> bool:
    """The gradient that reaches ``copy`` also reaches another branch: summing it in place would poison that one."""
    axis = world()
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    z = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (twins.copy(x, axis) + z).sum().backward()  # both branches get the very same gradient tensor
    return torch.equal(z.grad, torch.ones(3)) and torch.equal(x.grad, torch.full((3,), float(axis.size)))


def test_copy_does_not_sum_a_shared_gradient_in_place(ranks):
    assert all(ranks(3).run(gradient_still_used))


def refusals() -> list[str]:
    axis = world()
    calls = [
        lambda: comm.reduce_scatter(torch.ones(5), axis),
        lambda: twins.split(torch.ones(5), axis),
        lambda: comm.all_to_all(torch.ones(5), axis),
        lambda: comm.all_to_all(torch.ones(4), axis, [1, 1], [2, 2]),
        lambda: comm.all_reduce(torch.ones(2), axis, "mean"),
        lambda: comm.send(torch.ones(2), axis.rank, axis),
        lambda: comm.send(torch.ones(2), axis.size, axis),
    ]
    said = []
    for call in calls:
        with pytest.raises(ValueError) as refused:  # noqa: PT011 - the messages are what the test compares
            call()
        said.append(str(refused.value))
    return said


def test_bad_input_is_refused_before_anything_is_sent(ranks):
    for rank, said in enumerate(ranks(2).run(refusals)):
        expected = ["multiple of 2", "does not split over the 2", "pass send_counts", "add up to the 4 rows", "for a mean, sum and"]
        expected += [f"cannot exchange with rank {rank}", "cannot exchange with rank 2"]
        for message, part in zip(said, expected, strict=True):
            assert part in message

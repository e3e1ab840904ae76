"""Which ranks an axis holds, in which order; the expert view; what is refused."""

import itertools

import pytest
import torch

from minipar import Mesh, mesh
from minipar.mesh import Axis, world


def lines(sizes: dict[str, int], names: list[tuple[str, ...]]) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    mesh = Mesh(**sizes)
    return {"+".join(name): (mesh[name].size, mesh[name].rank, mesh[name].ranks) for name in names}


def test_tp_holds_neighbours_and_pp_is_outermost(ranks):
    singles = [("pp",), ("dp",), ("cp",), ("tp",)]
    seen = ranks(4).run(lines, {"pp": 2, "tp": 2}, singles)
    assert [line["tp"] for line in seen] == [(2, 0, (0, 1)), (2, 1, (0, 1)), (2, 0, (2, 3)), (2, 1, (2, 3))]
    assert [line["pp"] for line in seen] == [(2, 0, (0, 2)), (2, 0, (1, 3)), (2, 1, (0, 2)), (2, 1, (1, 3))]
    assert [line["dp"] for line in seen] == [(1, 0, (r,)) for r in range(4)]


@pytest.mark.parametrize("pair", list(itertools.combinations(("pp", "dp", "cp", "tp"), 2)), ids="x".join)
def test_any_two_axes_are_the_rows_and_columns_of_a_grid(ranks, pair):
    outer, inner = pair  # in order: outermost first
    for rank, line in enumerate(ranks(4).run(lines, {outer: 2, inner: 2}, [(outer,), (inner,)])):
        row, column = divmod(rank, 2)
        assert line[inner] == (2, column, (2 * row, 2 * row + 1))
        assert line[outer] == (2, row, (column, column + 2))


def test_a_joint_axis_holds_the_ranks_of_both_in_order(ranks):
    joints = [("dp", "cp"), ("dp", "tp"), ("tp", "dp")]
    for rank, line in enumerate(ranks(4).run(lines, {"dp": 2, "tp": 2}, joints)):
        assert line["dp+cp"] == (2, rank // 2, (rank % 2, rank % 2 + 2))  # cp has one rank: the joint axis is dp's own
        assert line["dp+tp"] == line["tp+dp"] == (4, rank, (0, 1, 2, 3))


def test_the_expert_axis_regroups_the_ranks_of_a_stage(ranks):
    names = [("ep",), ("edp",), ("dp",)]
    for rank, line in enumerate(ranks(4).run(lines, {"dp": 4, "ep": 2}, names)):
        row, column = divmod(rank, 2)
        assert line["ep"] == (2, column, (2 * row, 2 * row + 1))
        assert line["edp"] == (2, row, (column, column + 2))
        assert line["dp"] == (4, rank, (0, 1, 2, 3))


def test_experts_stay_within_their_pipeline_stage(ranks):
    for rank, line in enumerate(ranks(4).run(lines, {"pp": 2, "tp": 2, "ep": 2}, [("ep",), ("edp",), ("tp",)])):
        stage = (0, 1) if rank < 2 else (2, 3)
        assert line["ep"] == line["tp"] == (2, rank % 2, stage)
        assert line["edp"] == (1, 0, (rank,))


def test_without_an_expert_axis_every_rank_of_a_stage_holds_the_same_experts(ranks):
    for rank, line in enumerate(ranks(4).run(lines, {"dp": 2, "tp": 2}, [("edp",), ("ep",)])):
        assert line == {"edp": (4, rank, (0, 1, 2, 3)), "ep": (1, 0, (rank,))}


def every_axis_of_one() -> set[tuple[int, int, tuple[int, ...]]]:
    mesh = Mesh()
    names = [*mesh.sizes, ("dp", "cp"), ("pp", "dp", "cp", "tp"), ("cp", "tp")]
    return {(mesh[name].size, mesh[name].rank, mesh[name].ranks) for name in names}


def test_a_mesh_of_one_rank_works_with_and_without_a_process_group(ranks):
    assert every_axis_of_one() == {(1, 0, (0,))}
    assert world() == Axis("world", 1, 0, (0,))
    assert ranks(1).run(every_axis_of_one) == [{(1, 0, (0,))}]


def refused(sizes: dict) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the caller compares the message
        Mesh(**sizes)
    return str(error.value)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"dp": 3}, "pp 1 x dp 3 x cp 1 x tp 1 = 3 ranks, but 2 are running"),
        ({}, "= 1 ranks, but 2 are running"),
        ({"dp": 2, "tp": 0}, "axis tp must be a whole number of ranks, at least 1; got 0"),
        ({"dp": 2.0}, "axis dp must be a whole number of ranks, at least 1; got 2.0"),
        ({"dp": -2, "tp": -1}, "axis dp must be a whole number"),
        ({"dp": 2, "tp": True}, "axis tp must be a whole number of ranks, at least 1; got True"),
        ({"dp": 2, "ep": 4}, "ep 4 does not divide the 2 ranks of one stage"),
        ({"pp": 2, "ep": 2}, "ep 2 does not divide the 1 ranks of one stage"),
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused_with_the_reason(ranks, sizes, reason):
    assert all(reason in said for said in ranks(2).run(refused, sizes))


def test_an_unknown_axis_is_named():
    with pytest.raises(KeyError, match="no axis 'xp'"):
        Mesh()["xp"]
    with pytest.raises(KeyError, match="no axis 'xp'"):
        Mesh()["dp", "xp"]


def joint_refused(sizes: dict[str, int], names: tuple[str, ...]) -> str:
    with pytest.raises(KeyError) as error:
        Mesh(**sizes)[names]
    return str(error.value)


@pytest.mark.parametrize("names", [("dp", "ep"), ("edp", "ep"), ("ep", "tp")], ids="+".join)
def test_a_joint_axis_that_no_mesh_has_is_refused_and_never_taken_for_one_rank(ranks, names):
    for said in ranks(4).run(joint_refused, {"dp": 2, "tp": 2, "ep": 2}, names):
        assert "no joint axis of" in said
        assert "dp+tp" in said


def test_the_axes_of_a_mesh_agree_with_torch_device_mesh(ranks):
    def torch_lines() -> list[tuple[int, ...]]:
        from torch.distributed import get_process_group_ranks
        from torch.distributed.device_mesh import init_device_mesh

        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return [tuple(get_process_group_ranks(grid.get_group(name))) for name in ("dp", "tp")]

    ours = ranks(4).run(lines, {"dp": 2, "tp": 2}, [("dp",), ("tp",)])
    assert [[line["dp"][2], line["tp"][2]] for line in ours] == ranks(4).run(torch_lines)


def test_importing_the_mesh_does_not_start_a_process_group():
    Mesh()
    assert not torch.distributed.is_initialized()


def same_groups() -> list[bool]:
    first, second = Mesh(dp=2, tp=2), Mesh(dp=2, tp=2)
    return [first[name].group is second[name].group for name in ("dp", "tp", ("dp", "tp"), "edp")]


def test_equal_meshes_share_their_groups(ranks):
    """A group costs threads and sockets on every rank: a pool that makes a mesh in each run would fill up with them."""
    assert all(all(same) for same in ranks(4).run(same_groups))


def _new_mesh() -> None:
    mesh._made = (None, {})  # as if no mesh had been made before
    Mesh(dp=world().size)


def test_making_a_mesh_leaves_no_spans(ranks):
    pool = ranks(2)
    pool.run(_new_mesh)
    assert pool.last_run.timeline.spans == []

"""Experts that move to other ranks, with replicas of the busy ones, learn exactly what they would have learnt at home."""

from dataclasses import replace

import pytest
import torch

from minipar import GPTConfig, Mesh
from minipar.expert_parallel import MoE, moe_layers, parallelize
from minipar.expert_parallel.placement import Placement, in_order
from minipar.expert_parallel.relocate import relocate
from minipar.expert_parallel.skewed import BY_LOAD, IN_ORDER, REPLICAS, Setting, start, train
from minipar.parameters import full_tensor, grad_norm, place

SMALL = Setting(experts=4, width=8, ffn=8, rows=8, seq=8, moved=2)


def learnt(placement: str, n: int) -> tuple[list[float], list[tuple], list[tuple], list[int]]:
    """Losses and loads of six steps, the rows by rank, and the slots in the end."""
    mesh = Mesh(dp=n, ep=n)
    setting = replace(SMALL, placement=placement)
    model = start(setting, mesh).double()
    steps = list(train(setting, mesh, 6, model))
    held = moe_layers(model)[0].placement or in_order(4, n)
    return [s.loss for s in steps], [s.loads[0].counts for s in steps], [s.rows for s in steps], list(held.slots)


def whole(placement: str, n: int) -> tuple[list[float], dict[str, torch.Tensor], str]:
    """After six steps: the norms of the last gradient, all parameters whole, and what a checkpoint is told of the experts."""
    mesh = Mesh(dp=n, ep=n)
    setting = replace(SMALL, placement=placement)
    model = start(setting, mesh).double()
    list(train(setting, mesh, 6, model))
    params = dict(model.named_parameters())
    try:
        told = str([place(p, mesh) for p in params.values()][-1])
    except ValueError as error:
        told = str(error)
    norms = [grad_norm(params.values(), mesh, order).item() for order in (2.0, float("inf"))]
    return norms, {name: full_tensor(p, p, mesh) for name, p in params.items()}, told


@pytest.mark.parametrize("placement", [BY_LOAD, REPLICAS])
def test_what_is_put_together_from_moved_experts_is_the_same_whole(ranks, placement):
    """Parameters, and both norms of the gradient: a replica counts once, not once a copy. A checkpoint refuses them."""
    (norms, params, told), *_ = ranks(2).run(whole, IN_ORDER, 2)
    assert "moved" not in told
    for moved_norms, moved_params, moved_told in ranks(2).run(whole, placement, 2):
        assert moved_norms == pytest.approx(norms, rel=1e-10)
        assert moved_params.keys() == params.keys()
        for name, param in params.items():
            torch.testing.assert_close(moved_params[name], param, rtol=1e-9, atol=1e-12)
        assert "move them home first" in moved_told


def home_again() -> tuple[list[torch.Tensor], list[torch.Tensor], bool]:
    """The experts before and after they were moved to other ranks, with replicas, and back."""
    mesh = Mesh(dp=2, ep=2)
    model = start(SMALL, mesh)
    optimizer, layer = torch.optim.Adam(model.parameters()), moe_layers(model)[0]
    before = [p.detach().clone() for p in layer.experts.parameters()]
    for placement in (Placement((3, 2, 0, 1, 0, 2), 2), in_order(4, 2)):
        relocate(layer, placement, optimizer)
    return before, list(layer.experts.parameters()), bool([place(p, mesh) for p in layer.experts.parameters()])


def test_experts_that_came_home_are_what_they_were_and_can_be_saved(ranks):
    for before, after, can_be_saved in ranks(2).run(home_again):
        assert all(map(torch.equal, before, after))
        assert can_be_saved


@pytest.mark.parametrize("placement", [BY_LOAD, REPLICAS])
def test_moved_experts_learn_what_they_would_have_learnt_at_home(ranks, placement):
    """Weights, Adam's memory and gradients go along: after the move every loss is the same to 1e-10."""
    losses, loads, rows, _ = ranks(2).run(learnt, IN_ORDER, 2)[0]
    for moved_losses, moved_loads, moved_rows, slots in ranks(2).run(learnt, placement, 2):
        assert moved_losses == pytest.approx(losses, rel=1e-10)
        assert moved_loads == loads
        assert moved_rows[:2] == rows[:2]
        assert [sum(r) for r in moved_rows] == [sum(r) for r in rows]
        assert sorted(set(slots)) == [0, 1, 2, 3]
        assert len(slots) == (6 if placement == REPLICAS else 4)
        assert max(moved_rows[-1]) < max(rows[-1]) or (placement == BY_LOAD and set(moved_rows[-1]) == set(rows[-1]))


def replicas_after_training(n: int) -> list[tuple[int, torch.Tensor]]:
    mesh = Mesh(dp=n, ep=n)
    setting = replace(SMALL, placement=REPLICAS)
    model = start(setting, mesh)
    list(train(setting, mesh, 6, model))
    layer = moe_layers(model)[0]
    return list(zip(layer.placement.on(mesh["ep"].rank), layer.experts.gate.detach(), strict=True))


def test_replicas_of_an_expert_stay_bitwise_equal(ranks):
    held = [pair for own in ranks(2).run(replicas_after_training, 2) for pair in own]
    copies = [[weight for expert, weight in held if expert == e] for e in range(4)]
    assert max(map(len, copies)) > 1
    assert all(torch.equal(weight, own[0]) for own in copies for weight in own)


def test_a_placement_for_others_is_refused():
    layer = parallelize(MoE(GPTConfig(width=8, heads=1, ffn=8, experts=4)), Mesh())
    with pytest.raises(ValueError, match="a placement of 3 experts on 1 ranks does not fit 4 on 1"):
        relocate(layer, Placement((0, 1, 2), 1), torch.optim.SGD(layer.parameters(), 0.1))
    with pytest.raises(ValueError, match="placement is one of in order, by load"):
        Setting(placement="anywhere")

"""Experts that move to other ranks, with replicas of the busy ones, learn exactly what they would have learnt at home."""

from dataclasses import replace

import pytest
import torch

from minipar import GPTConfig, Mesh
from minipar.expert_parallel import MoE, moe_layers, parallelize
from minipar.expert_parallel.placement import Placement, in_order
from minipar.expert_parallel.relocate import relocate
from minipar.expert_parallel.skewed import BY_LOAD, IN_ORDER, REPLICAS, Setting, start, train

SMALL = Setting(experts=4, width=8, ffn=8, rows=8, seq=8, moved=2)


def learnt(placement: str, n: int) -> tuple[list[float], list[tuple], list[tuple], list[int]]:
    """Losses and loads of six steps, the rows by rank, and the slots in the end."""
    mesh = Mesh(dp=n, ep=n)
    setting = replace(SMALL, placement=placement)
    model = start(setting, mesh).double()
    steps = list(train(setting, mesh, 6, model))
    held = moe_layers(model)[0].placement or in_order(4, n)
    return [s.loss for s in steps], [s.loads[0].counts for s in steps], [s.rows for s in steps], list(held.slots)


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

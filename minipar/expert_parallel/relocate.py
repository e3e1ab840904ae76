"""Experts moved to other ranks in the middle of training, the busiest with replicas: their weights, and what the optimizer knows.

Between two steps all ranks gather all experts, and each keeps those that the placement gives it. From then on a rank's rows go to
the *slots* that hold an expert, a busy expert's in turn to each of its replicas; after backward every replica gets the gradient of
all of them, so that they stay equal.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minipar import comm
from minipar.expert_parallel.layer import MoE
from minipar.expert_parallel.placement import Placement, in_order
from minipar.parameters import reorder, shard, spec, sum_over


def relocate(layer: MoE, placement: Placement, optimizer: torch.optim.Optimizer) -> None:
    """From now on, hold the experts of ``layer`` as ``placement`` says; call it on every rank of the layer's expert axis.

    The new parameters say in which order their experts lie: what is put together from all ranks is the same as before, and so is
    the norm of the gradient; only a checkpoint wants them in order. Raises ValueError where the placement is for another number of
    ranks or experts, or the ranks hold different numbers of experts.
    """
    axis, experts = layer.axes.expert, layer.router.weight.shape[0]
    if (placement.ranks, len(placement.replicas)) != (axis.size, experts):
        raise ValueError(
            f"a placement of {len(placement.replicas)} experts on {placement.ranks} ranks does not fit {experts} on {axis.size}"
        )
    before = layer.placement or in_order(experts, axis.size)
    sizes = [placement.per_rank] * axis.size
    source = torch.tensor([before.slots.index(expert) for expert in placement.on(axis.rank)])
    for name, old in list(layer.experts.named_parameters()):
        new = nn.Parameter(comm.all_gather(old.detach(), axis)[source])  # [slots of this rank, ...]
        sum_over(new, spec(old).sum_over)
        spec(new).shards.update(spec(old).shards)
        shard(new, "ep", 0, sizes)
        if placement.slots != tuple(range(experts)):
            reorder(new, "ep", placement.slots)
        setattr(layer.experts, name, new)
        for group in optimizer.param_groups:
            group["params"] = [new if param is old else param for param in group["params"]]
        known = optimizer.state.pop(old, {})
        optimizer.state[new] = {k: comm.all_gather(v, axis)[source] if v.shape == old.shape else v for k, v in known.items()}
    layer.placement, layer.sizes = placement, sizes


def sum_replicas(layer: MoE) -> None:
    """After backward, on every rank: give each replica of an expert the gradient of all its replicas."""
    placement, axis = layer.placement, layer.axes.expert
    if placement is None or max(placement.replicas) == 1:
        return
    slots = torch.tensor(placement.slots)
    for param in layer.experts.parameters():
        assert param.grad is not None  # an expert without a row has a gradient of zeros
        param.grad.copy_(_by_expert(comm.all_gather(param.grad, axis), slots)[list(placement.on(axis.rank))])


def _by_expert(grads: Tensor, slots: Tensor) -> Tensor:
    """``[slots, ...]`` gradients to ``[experts, ...]``, summed over the replicas."""
    return grads.new_zeros(int(slots.max()) + 1, *grads.shape[1:]).index_add_(0, slots, grads)

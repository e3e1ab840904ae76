"""A mixture-of-experts layer, on one process or with its experts spread over the ranks: the same code, on axes of size 1 or more.

    route -> (drop what is beyond capacity) -> dispatch -> experts -> combine (+ shared experts)

The expert axis is a second view of the ranks that split the batch: a rank computes attention for its tokens, and the experts it
holds for everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minipar import comm
from minipar.comm import twins
from minipar.expert_parallel.capacity import capacity, within_capacity
from minipar.expert_parallel.dispatch import Plan, combine, dispatch, plan
from minipar.expert_parallel.experts import Experts
from minipar.expert_parallel.losses import adjusted_bias, balance_loss, with_auxiliary, z_loss
from minipar.expert_parallel.options import MoEOptions
from minipar.expert_parallel.placement import Placement
from minipar.expert_parallel.router import Router, Routing
from minipar.mesh import Axis, world
from minipar.trace import tracer

if TYPE_CHECKING:
    from minipar.model import GPTConfig


def _alone(name: str) -> Axis:
    return Axis(name, 1, 0, (world().rank,))


@dataclass(frozen=True)
class Axes:
    """The axes that one MoE layer communicates over; each may be of size 1."""

    expert: Axis = field(default_factory=lambda: _alone("ep"))  # the ranks that share the experts
    data: Axis = field(default_factory=lambda: _alone("data"))  # the ranks that hold different tokens
    split: Axis = field(default_factory=lambda: _alone("tp"))  # ranks with the same tokens: each takes a part of them
    inside: Axis = field(default_factory=lambda: _alone("tp"))  # the ranks that each hold a part of every expert


@dataclass(frozen=True)
class Pass:
    """What one forward pass did, for whoever watches."""

    routed: Tensor  # [E], int64: copies for each expert over all data ranks, before any were dropped
    tokens: int  # over all data ranks
    kept: Tensor  # [E], int64: this rank's copies after drops
    dropped: int  # of this rank's copies; where experts choose, top_k for each token that none of them chose
    sent: list[int]  # rows to each rank of the expert axis
    received: int  # rows for this rank's experts
    balance: Tensor  # this rank's share of the balance loss; the sum over the data ranks is the loss
    z: Tensor


class MoE(nn.Module):
    """``[..., width]`` to the same: each token through ``top_k`` of the experts. ``GPTConfig.moe`` holds the options.

    Between two calls of ``end_step`` the layer adds up the load of its experts; ``last`` tells about the latest forward pass.
    """

    load: Tensor  # [E], int64: this rank's copies since the last end_step
    last: Pass | None

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.options = config.moe or MoEOptions()
        self.router = Router(config.width, config.experts, config.top_k, self.options)
        self.experts = Experts(config.experts, config.width, config.ffn)
        self.shared = Experts(1, config.width, self.options.shared * config.ffn) if self.options.shared else None
        self.sizes = [config.experts]  # experts (or slots, where they are placed) on each rank of the expert axis
        self.placement: Placement | None = None  # None: in order of their number (see relocate.py)
        self.axes = Axes()
        self.name = "moe"
        self.steps = 0
        self.register_buffer("load", torch.zeros(config.experts, dtype=torch.int64), persistent=False)
        self.auxiliary_scale = 1.0  # 1 / microbatches, times the loss scale where there is one
        self.last = None

    def forward(self, x: Tensor) -> Tensor:
        whole = x.reshape(-1, x.shape[-1])  # [T, width]
        tokens = self._own_part(whole)
        routing = self.router(tokens, f"of {self.name} at step {self.steps} on rank {world().rank}")
        routed, total = self._global_counts(routing)
        kept = self._drop(routing, total)
        slot = kept.expert if self.placement is None else self.placement.slot_of(kept.expert)
        mapping = plan(slot, kept.token, kept.tokens, self.sizes, self.axes.expert)
        y = self._through_experts(tokens, kept.weight, mapping)
        y = self._add_losses(y, routing, kept, routed, total, mapping)
        y = self._all_parts(y, whole)
        if self.shared is not None:
            y = y + self.shared(whole, [len(whole)])
        return y.view_as(x)

    def _through_experts(self, x: Tensor, weight: Tensor, mapping: Plan) -> Tensor:
        inside, axis = self.axes.inside, self.axes.expert
        if inside.size > 1:  # each rank sees only its part of every expert: gradients of what they share are partial
            x, weight = twins.copy(x, inside), twins.copy(weight, inside)
        with tracer.span("dispatch"):
            rows = dispatch(x, mapping, axis)
        rows = self.experts(rows, mapping.counts)
        with tracer.span("combine"):
            y = combine(rows, weight, mapping, axis)
        return twins.reduce(y, inside) if inside.size > 1 else y

    def _global_counts(self, routing: Routing) -> tuple[Tensor, int]:
        """``[E]`` routed copies and the number of tokens, over all data ranks."""
        counts = routing.counts
        if self.training:
            self.load += counts
        everyone = comm.all_reduce(torch.cat([counts, counts.new_tensor([routing.tokens])]), self.axes.data)
        return everyone[:-1], int(everyone[-1])

    def _drop(self, routing: Routing, total: int) -> Routing:
        factor, options = self.options.capacity_factor, self.options
        if factor is None:
            return routing
        tokens, axis = (total, self.axes.data) if options.scope == "global" else (routing.tokens, _alone("rank"))
        limit = capacity(tokens, len(self.router.weight), self.router.k, factor)
        order = "score" if options.router == "expert-choice" else options.order
        return routing.keep(within_capacity(routing, limit, order, axis))

    def _add_losses(self, y: Tensor, routing: Routing, kept: Routing, routed: Tensor, total: int, mapping: Plan) -> Tensor:
        options = self.options
        weight = 0.0 if options.router == "expert-choice" else options.balance  # every expert takes its fill anyway
        balance = balance_loss(routing.probs if weight else routing.probs.detach(), routed, total)
        z = z_loss(routing.logits, total) if options.z else torch.zeros_like(balance)
        chosen_by_none = self.router.k * (routing.tokens - len(kept.token.unique()))
        dropped = chosen_by_none if options.router == "expert-choice" else len(routing.expert) - len(kept.expert)
        received = sum(mapping.counts)
        self.last = Pass(routed, total, kept.counts, dropped, mapping.send, received, balance.detach(), z.detach())
        if (weight or options.z) and torch.is_grad_enabled():
            y = with_auxiliary(y, self.auxiliary_scale * (weight * balance + options.z * z))
        return y

    def _own_part(self, x: Tensor) -> Tensor:
        """Where ranks hold the same tokens, each works on a share of them; the gradient of ``x`` is the sum of the shares'."""
        axis = self.axes.split
        return x if axis.size == 1 else twins.copy(x, axis).tensor_split(axis.size)[axis.rank]

    def _all_parts(self, y: Tensor, whole: Tensor) -> Tensor:
        axis = self.axes.split
        if axis.size == 1:
            return y
        before = sum(len(part) for part in whole.tensor_split(axis.size)[: axis.rank])
        padded = torch.cat([y.new_zeros(before, y.shape[1]), y, y.new_zeros(len(whole) - before - len(y), y.shape[1])])
        return twins.reduce(padded, axis)

    def end_step(self) -> None:
        """After each training step, on every rank: move the loss-free bias by the load of the step, and start counting anew."""
        if self.options.router == "sigmoid":
            load = comm.all_reduce(self.load, self.axes.data)
            self.router.bias.copy_(adjusted_bias(self.router.bias, load, self.options.bias_rate))
        self.load.zero_()
        self.steps += 1


def moe_layers(model: nn.Module) -> list[MoE]:
    """The MoE layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, MoE)]


def end_step(model: nn.Module) -> None:
    """``MoE.end_step`` for every MoE layer of ``model``."""
    for layer in moe_layers(model):
        layer.end_step()


def routed(model: nn.Module) -> list[int]:
    """Copies that this rank routed to each expert since the last ``end_step``, over all MoE layers: what the planner asks for.

    Empty for a dense model. Where a capacity drops copies, these are still among them.
    """
    loads = [layer.load for layer in moe_layers(model)]
    return torch.stack(loads).sum(dim=0).tolist() if loads else []


def auxiliary_loss(model: nn.Module) -> Tensor:
    """This rank's share of all weighted auxiliary losses of the latest forward pass, a scalar without a gradient.

    The sum over the data ranks is what training adds to the main loss (``losses.with_auxiliary`` has seen to the gradients).
    """
    parts = [
        layer.options.balance * layer.last.balance + layer.options.z * layer.last.z for layer in moe_layers(model) if layer.last
    ]
    return torch.stack(parts).sum() if parts else torch.zeros(())

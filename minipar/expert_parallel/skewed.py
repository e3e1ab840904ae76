"""A small training run whose router collapses when nothing holds it: a setting to watch imbalance, and remedies, in.

Real text, with a skew: a share of every batch's rows comes from one short passage, as boilerplate does in real corpora. The experts
that serve it get ever better at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from minipar import comm, data
from minipar.data import Batch
from minipar.expert_parallel.layer import MoE, end_step, moe_layers
from minipar.expert_parallel.options import MoEOptions
from minipar.expert_parallel.parallel import parallelize
from minipar.expert_parallel.placement import Placement, in_order, place
from minipar.expert_parallel.relocate import relocate, sum_replicas
from minipar.expert_parallel.remedies import Load, Trace
from minipar.mesh import Mesh
from minipar.model import GPT, GPTConfig
from minipar.parameters import sync_gradients

UNBALANCED = MoEOptions(balance=0.0, renormalise=False)
REMEDIES = {
    "none": UNBALANCED,
    "balance loss": replace(UNBALANCED, balance=0.01),
    "loss-free bias": replace(UNBALANCED, router="sigmoid", bias_rate=0.004),
    "capacity": replace(UNBALANCED, capacity=1.25),
}
IN_ORDER, BY_LOAD, REPLICAS = PLACEMENTS = ("in order", "by load", "with replicas")


@dataclass(frozen=True)
class Setting:
    """What the run trains, and on what."""

    experts: int = 8
    top_k: int = 1
    skew: float = 0.5  # share of the rows that come from one passage
    moe: MoEOptions = UNBALANCED
    placement: str = IN_ORDER  # one of PLACEMENTS: where the experts are from step ``moved`` on
    moved: int = 50
    layers: int = 1
    width: int = 32
    ffn: int = 32
    rows: int = 64
    seq: int = 32
    passage: int = 256  # bytes
    lr: float = 2e-3  # at the start; it falls to zero in a straight line
    seed: int = 0

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement is one of {', '.join(PLACEMENTS)}, not {self.placement!r}")

    def config(self) -> GPTConfig:
        return GPTConfig(
            layers=self.layers,
            width=self.width,
            heads=2,
            ffn=self.ffn,
            seq=self.seq,
            experts=self.experts,
            top_k=self.top_k,
            moe=self.moe,
        )


@dataclass(frozen=True)
class Step:
    """One training step over all ranks; every rank reports the same. All numbers but the loss are counted."""

    step: int
    loss: float  # mean over the global batch, without the auxiliary losses
    loads: tuple[Load, ...]  # of each MoE layer
    rows: tuple[int, ...]  # copies that each rank's experts worked on, over all layers
    traffic: tuple[tuple[int, ...], ...]  # bytes from rank to rank: dispatch and combine, forward and backward


def batch(setting: Setting, step: int) -> Batch:
    """The global batch: the first ``skew`` of its rows begin anywhere in one passage and go round it."""
    whole = data.batch(step, setting.rows, setting.seq)
    count = round(setting.skew * setting.rows)
    text = torch.tensor(list(data.corpus()[: setting.passage]))
    starts = torch.randint(setting.passage, (count, 1), generator=torch.Generator().manual_seed(step))
    window = text[(starts + torch.arange(setting.seq + 1)) % setting.passage]  # [count, seq + 1]
    inputs, targets = whole.inputs.clone(), whole.targets.clone()
    inputs[:count], targets[:count] = window[:, :-1], window[:, 1:]
    return replace(whole, inputs=inputs, targets=targets)


def record(setting: Setting, mesh: Mesh, steps: int = 200, keep: int = 50) -> Trace:
    """What came to the first MoE layer's router in the last ``keep`` steps of a run, and the router as it was before them.

    On each rank of ``mesh`` that rank's tokens.
    """
    tokens: list[Tensor] = []
    weight: list[Tensor] = []

    def listen(router: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        tokens.append(inputs[0].detach().clone())
        weight.append(router.get_parameter("weight").detach().clone())

    model = start(setting, mesh)
    moe_layers(model)[0].router.register_forward_pre_hook(listen)
    for _ in _train(model, setting, mesh, steps):
        del tokens[:-keep], weight[:-keep]
    return Trace(tokens, weight[0])


def train(setting: Setting, mesh: Mesh, steps: int = 200, model: GPT | None = None) -> Iterator[Step]:
    """Train on every rank of ``mesh`` (rows over "dp", experts over "ep", nothing else) and report each step as it ends.

    ``model`` is what ``start`` gave, for who wants to have it afterwards.
    """
    yield from _train(model or start(setting, mesh), setting, mesh, steps)


def start(setting: Setting, mesh: Mesh) -> GPT:
    """The model before its first step, each rank with its own experts."""
    model = GPT(setting.config(), setting.seed)
    parallelize(model, mesh)
    return model


def wanted_placement(setting: Setting, loads: Sequence[float], ranks: int) -> Placement:
    """Where ``setting`` wants the experts, by their measured ``loads``; for replicas each rank has a slot more."""
    if setting.placement == IN_ORDER:
        return in_order(setting.experts, ranks)
    return place(loads, setting.experts + (ranks if setting.placement == REPLICAS else 0), ranks)


def _train(model: GPT, setting: Setting, mesh: Mesh, steps: int) -> Iterator[Step]:
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr, fused=True)
    layers, loads = moe_layers(model), torch.zeros(setting.layers, setting.experts)
    for step in range(steps):
        if step == setting.moved and setting.placement != IN_ORDER:
            for layer, load in zip(layers, loads.tolist(), strict=True):
                relocate(layer, wanted_placement(setting, load, mesh["ep"].size), optimizer)
        optimizer.param_groups[0]["lr"] = setting.lr * (1 - step / steps)
        part = batch(setting, step).rows_of(mesh["dp"])
        optimizer.zero_grad()
        loss = model.loss(part)
        loss.backward()
        for layer in layers:
            sum_replicas(layer)
        sync_gradients(model.parameters(), mesh)
        optimizer.step()
        end_step(model)
        seen = report(step, loss.detach(), layers, mesh)
        loads = 0.9 * loads + torch.tensor([load.counts for load in seen.loads])  # the latest steps count most
        yield seen


def report(step: int, loss: Tensor, layers: Sequence[MoE], mesh: Mesh) -> Step:
    """What the layers did in their latest pass, gathered from all ranks in one call; ``loss`` is this rank's share."""
    passes, n = [layer.last for layer in layers if layer.last is not None], mesh.world.size
    sent = torch.zeros(n, dtype=torch.float64)
    sent[list(layers[0].axes.expert.ranks)] = torch.tensor([one.sent for one in passes], dtype=torch.float64).sum(0)
    numbers = torch.tensor([loss, sum(one.received for one in passes), *(one.dropped for one in passes)], dtype=torch.float64)
    parts = [numbers, sent, *(one.kept.double() for one in passes)]
    everyone = comm.all_gather(torch.cat(parts)[None], mesh.world)  # [ranks, numbers]
    losses, received, dropped, to, kept = everyone.split([1, 1, len(passes), n, sum(len(one.kept) for one in passes)], dim=1)
    counts = [  # where experts choose, every expert is offered every token: what it took is its load
        taken if layer.options.router == "expert-choice" else one.routed
        for layer, one, taken in zip(layers, passes, kept.sum(0).chunk(len(passes)), strict=True)
    ]
    loads = tuple(Load(_whole(c), int(d)) for c, d in zip(counts, dropped.sum(0), strict=True))
    row = layers[0].experts.gate.shape[1] * layers[0].experts.gate.element_size()  # bytes of one row
    crossed = 2 * row * (to + to.T).fill_diagonal_(0)
    return Step(step, losses.sum().item(), loads, _whole(received.flatten()), tuple(_whole(line) for line in crossed))


def _whole(x: Tensor) -> tuple[int, ...]:
    return tuple(int(value) for value in x.tolist())

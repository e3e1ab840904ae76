"""What the ranks of the experts lab do. Like ``work.py``, it must not import views."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from course.ranks import emit
from minipar import GPT, Mesh, comm
from minipar.expert_parallel import moe_layers
from minipar.expert_parallel.skewed import Setting, Step, batch, start, train
from minipar.hardware import Cluster
from minipar.trace import COMM, COMPUTE, Span, tracer


class Seen(NamedTuple):
    """What one rank has to tell after its run."""

    steps: list[Step]  # on rank 0 only: every rank's are the same
    spans: list[Span]  # of one pass through the MoE layer, paced


def train_experts(setting: Setting, steps: int, hardware: Cluster) -> Seen:
    """On each rank: train, telling of every step; then one more pass through the MoE layer alone, as slow as on ``hardware``."""
    mesh = Mesh(dp=comm.world().size, ep=comm.world().size)
    model = start(setting, mesh)
    history = []
    tracer.enabled = False  # 200 steps are thousands of spans, of a machine that is too busy for them to mean much
    try:
        for step in train(setting, mesh, steps, model):
            history.append(step)
            if mesh.world.rank == 0:
                load = step.loads[0]
                emit("step", (step.step, load.counts, step.rows, load.drop_share, step.traffic))
    finally:
        tracer.enabled = True
    x = tokens_of(model, setting, mesh, steps)
    comm.pace(hardware, mesh.world.rank)
    spans = one_pass(moe_layers(model)[0], x, mesh)
    return Seen(history if mesh.world.rank == 0 else [], spans)


def tokens_of(model: GPT, setting: Setting, mesh: Mesh, step: int) -> Tensor:
    """``[T, width]``: this rank's tokens as they come to the MoE layer in ``step``."""
    seen: list[Tensor] = []
    layer = moe_layers(model)[0]
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().flatten(0, 1)))
    with torch.no_grad():
        model(batch(setting, step).rows_of(mesh["dp"]).inputs)
    handle.remove()
    return seen[0].requires_grad_()


def one_pass(layer: nn.Module, x: Tensor, mesh: Mesh) -> list[Span]:
    """Forward and backward through ``layer``; each span named by its part in it."""
    comm.barrier(mesh.world)
    with tracer.watch() as spans:
        y = layer(x)
        with tracer.during("backward"):
            y.sum().backward()
    return named([s for s in spans if s.name != "barrier"])


def named(spans: list[Span]) -> list[Span]:
    """Each all-to-all by what it carries (told by their order), experts' work by its direction. Copies to and fro are not paced,
    and left out."""
    carries = iter(("counts", "dispatch", "combine", "combine", "dispatch"))  # forward, then backward
    out = []
    for s in sorted((s for s in spans if s.lane == COMM or s.name == "experts"), key=lambda s: s.start):
        if s.lane == COMM and s.name == "all_to_all":
            s = s._replace(name=f"all_to_all {next(carries)}")
        elif s.lane == COMPUTE:
            s = s._replace(name="B experts" if s.phase == "backward" else "F experts")
        out.append(s)
    return out

"""What the labs' ranks do. Ranks import this file, so it must not import views: that takes each a second."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import torch

from course.ranks import emit
from course.ranks.inside import inside
from minipar import GPT, Axis, GPTConfig, Mesh, comm, data, pacing
from minipar.collectives import ALL_REDUCE
from minipar.data import Batch
from minipar.data_parallel import Buckets
from minipar.model import loss_sum
from minipar.trace import Span, now, tracer

STEPS = 6
PAUSE = 0.15  # seconds of work before each all-reduce

RAISES, KILLED, SKIPS, LOOPS = "raises an error", "is killed", "skips its all-reduce", "loops for ever"


def work(which: int, what: str, when: int) -> int:
    """On each rank: a few steps, each a bit of work and an all-reduce. In step ``when`` it happens to rank ``which``."""
    axis = comm.world()
    total = torch.ones(1)
    for step in range(STEPS):
        time.sleep(PAUSE)
        if (axis.rank, step) == (which, when):
            emit("mishap", now())
            _send_what_was_seen()
            if mishap(what):
                continue
        total = comm.all_reduce(total, axis)
    return STEPS


def _send_what_was_seen() -> None:
    """Spans and messages so far leave before the rank does."""
    here = inside()
    if here is not None:
        here.flush()


def mishap(what: str) -> bool:
    """It happens; True: the rank goes on without its all-reduce."""
    if what == RAISES:
        raise ValueError("the loss is not a number")
    if what == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    while what == LOOPS:
        time.sleep(0.01)
    return True


def all_reduce_once(algorithm: str, elements: int) -> bool:
    """On each rank: one all-reduce of ``elements`` float32; whether the sum came out right."""
    axis = comm.world()
    x = torch.full((elements,), float(axis.rank + 1))
    comm.barrier(axis)
    ALL_REDUCE[algorithm](x, axis)
    return bool((x == axis.size * (axis.size + 1) / 2).all())


LAYER = 512  # the width of a layer: its gradient is 512 x 512 float32, 1.05 MB
LAYER_BYTES = LAYER * LAYER * 4


class PacedLayer(torch.nn.Module):
    """A square linear layer whose forward and backward take the modelled time of ``tokens`` tokens, and compute on a few."""

    def __init__(self, layer: int, tokens: int) -> None:
        super().__init__()
        self.layer, self.tokens = layer, tokens
        self.weight = torch.nn.Parameter(torch.eye(LAYER))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _PacedProduct.apply(x, self.weight, self.layer, self.tokens)


class _PacedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: int, tokens: int) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.tokens = layer, tokens
        with tracer.span(f"F {layer}"), pacing.compute(forward_flops(tokens)):
            return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        x, weight = ctx.saved_tensors
        with tracer.span(f"B {ctx.layer}"), pacing.compute(2 * forward_flops(ctx.tokens)):
            return grad @ weight, grad.T @ x, None, None


def forward_flops(tokens: int) -> float:
    """A multiplication and an addition for each weight and token; the backward pass takes twice as many."""
    return 2.0 * LAYER * LAYER * tokens


def data_parallel_step(layers: int, bucket_bytes: float, tokens: int) -> list[Span]:
    """On each rank: a step of some layers, gradients summed in buckets during backward; its spans."""
    mesh = Mesh(dp=torch.distributed.get_world_size())
    model = torch.nn.Sequential(*(PacedLayer(i, tokens) for i in range(layers)))
    buckets = Buckets(model, mesh, bucket_bytes)
    x = torch.full((4, LAYER), 1.0 + mesh["dp"].rank)
    comm.barrier(mesh["dp"])
    with tracer.watch() as spans, buckets.gather(), tracer.during("backward"):
        model(x).sum().backward()
    return spans


BY_TOKENS, BY_RANKS = "by tokens", "mean of means"
STEPS_OF_TRAINING = 25


def shard_rows(ranks: int, skew: int) -> list[int]:
    """Rows of each rank: rank 0 holds ``skew`` times as many as each other rank."""
    return [2 * skew, *[2] * (ranks - 1)]


def global_batch(step: int, ranks: int, skew: int) -> Batch:
    """Rows of real text, those with the most spaces first: ranks then hold different kinds of text, as real shards do."""
    batch = data.batch(step, sum(shard_rows(ranks, skew)), 64)
    order = (batch.inputs == ord(" ")).sum(1).argsort(descending=True, stable=True)
    return replace(batch, inputs=batch.inputs[order], targets=batch.targets[order])


def train_on_shards(skew: int, how: str) -> float:
    """On each rank: a small GPT trained on its shard, beside one process (on rank 0) that sees all rows.

    Returns, on rank 0, the relative difference of the first step's gradient from the one process's.
    """
    axis = comm.world()
    config = GPTConfig(layers=1, width=32, heads=2, seq=64)
    model, whole = GPT(config).double(), GPT(config).double()
    rows = shard_rows(axis.size, skew)
    first = 0.0
    for step in range(STEPS_OF_TRAINING):
        batch = global_batch(step, axis.size, skew)
        own = split_rows(batch, rows)[axis.rank]
        gradient = shard_gradient(model, own, how, axis)
        if axis.rank == 0:
            wanted = flat_gradient(whole, batch, batch.total)
            if step == 0:
                first = float((gradient - wanted).norm() / wanted.norm())
            emit("loss", ("one process", step, mean_loss(whole, batch)))
            emit("loss", ("these ranks", step, mean_loss(model, batch)))
            descend(whole, wanted)
        descend(model, gradient)
    return first


def shard_gradient(model: GPT, own: Batch, how: str, axis: Axis) -> torch.Tensor:
    """The gradient averaged over the ranks, by their tokens or by their number."""
    if how == BY_RANKS:
        return comm.all_reduce(flat_gradient(model, own, own.tokens), axis) / axis.size
    return comm.all_reduce(flat_gradient(model, own, own.total), axis)


def split_rows(batch: Batch, rows: list[int]) -> list[Batch]:
    inputs, targets = batch.inputs.split(rows), batch.targets.split(rows)
    return [replace(batch, inputs=x, targets=y) for x, y in zip(inputs, targets, strict=True)]


def flat_gradient(model: GPT, batch: Batch, count: int) -> torch.Tensor:
    """The gradient of the loss summed over ``batch`` and divided by ``count``, as one vector."""
    loss = loss_sum(model(batch.inputs), batch.targets) / count
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def mean_loss(model: GPT, batch: Batch) -> float:
    with torch.no_grad():
        return float(loss_sum(model(batch.inputs), batch.targets)) / batch.total


def descend(model: GPT, gradient: torch.Tensor, lr: float = 0.3) -> None:
    with torch.no_grad():
        for param, piece in zip(model.parameters(), gradient.split([p.numel() for p in model.parameters()]), strict=True):
            param.sub_(piece.view_as(param), alpha=lr)

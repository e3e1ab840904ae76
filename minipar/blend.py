"""A GPT on a mesh: the one place that puts the techniques together.

Each technique changes the model or the batch in its own way and notes on the parameters what became of them. So they are simply
applied one after the other, and gradients, norms and comparisons follow the notes:

    tensor      the matrices of every layer, over tp; with ``sequence_parallel`` also what lies between them
    experts     the experts of every MoE layer, over ep
    context     the sequence, over cp
    pipeline    the layers, over pp, by a schedule
    data        the rows of the batch, over dp; gradients are summed in buckets while the backward still runs
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from minipar import comm, context_parallel, expert_parallel, tensor_parallel
from minipar.choices import BUCKET_BYTES
from minipar.data import Batch
from minipar.data_parallel.buckets import Buckets
from minipar.mesh import Mesh
from minipar.model import GPT, GPTConfig
from minipar.pipeline_parallel import build as build_schedule
from minipar.pipeline_parallel.forward_only import evaluate
from minipar.pipeline_parallel.run import Pipeline, actions_of
from minipar.trace import tracer


class Engine(Protocol):
    """How the layers of one rank go through its part of the batch."""

    @property
    def model(self) -> nn.Module: ...

    def accumulate(self, batch: Batch) -> Tensor:
        """All microbatches forward and backward, gradients synced; returns this rank's share of the global mean loss."""
        ...

    def evaluate(self, batch: Batch) -> Tensor:
        """All microbatches forward only; returns this rank's share of the global mean loss."""
        ...

    def seed(self, seed: int, step: int) -> None: ...

    def bubble(self) -> tuple[float, float] | None: ...


class Whole:
    """All layers on this rank, one microbatch after the other; the last one sends its gradients while it makes them."""

    def __init__(self, model: GPT, mesh: Mesh, microbatches: int, bucket_bytes: float) -> None:
        self.model, self.mesh, self.microbatches = model, mesh, microbatches
        self.buckets = Buckets(model, mesh, bucket_bytes)

    def accumulate(self, batch: Batch) -> Tensor:
        *earlier, last = batch.parts(self.microbatches)
        loss = sum((self._pass(part, i) for i, part in enumerate(earlier)), start=0.0)
        with self.buckets.gather():
            return loss + self._pass(last, len(earlier))

    def _pass(self, part: Batch, microbatch: int) -> Tensor:
        with tracer.during("forward"), tracer.span("F", microbatch=microbatch):
            loss = self.model.loss(part)
        with tracer.during("backward"), tracer.span("B", microbatch=microbatch):
            loss.backward()
        return loss.detach()

    def evaluate(self, batch: Batch) -> Tensor:
        return sum((self.model.loss(part) for part in batch.parts(self.microbatches)), start=torch.zeros(()))

    def seed(self, seed: int, step: int) -> None:
        tensor_parallel.seed_ranks((seed * 1_000_003 + step) % 2**40, self.mesh)

    def bubble(self) -> None:
        return None


class Staged:
    """A pipeline; each stage's gradients set out while its last backward makes them, and travel while other stages work."""

    def __init__(self, pipeline: Pipeline, mesh: Mesh, bucket_bytes: float) -> None:
        self.pipeline, self.model = pipeline, pipeline.model
        self.buckets = Buckets(pipeline.model, mesh, bucket_bytes)

    def accumulate(self, batch: Batch) -> Tensor:
        return self.pipeline.accumulate(batch, self.buckets)

    def evaluate(self, batch: Batch) -> Tensor:
        return evaluate(self.pipeline, batch)

    def seed(self, seed: int, step: int) -> None:
        self.pipeline.seed, self.pipeline.steps = seed, step

    def bubble(self) -> tuple[float, float] | None:
        seen = actions_of(self.pipeline.timeline())
        return (self.pipeline.expected().bubble, seen.bubble) if seen.spans else None


class Blend:
    """A GPT split by every axis of ``mesh`` at once; a layout for ``minipar.ledger.compare`` and for training.

    ``context`` is the method of context parallelism.
    """

    def __init__(self, engine: Engine, mesh: Mesh, context: str) -> None:
        self.engine, self.mesh, self.context = engine, mesh, context
        self.model = engine.model

    def step(self, batch: Batch) -> Tensor:
        """Forward and backward of the GLOBAL batch; leaves synced gradients, returns the global mean loss on every rank."""
        return self._total(self.engine.accumulate(self._own_part(batch)))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """The global mean loss of the GLOBAL batch, without dropout and without gradients; the same on every rank."""
        self.model.eval()
        try:
            with tracer.during("forward"):
                return self._total(self.engine.evaluate(self._own_part(batch)))
        finally:
            self.model.train()

    def seed(self, seed: int, step: int) -> None:
        """Let all dropout masks of the coming step follow from these two alone: then a resumed run draws what it would have."""
        self.engine.seed(seed, step)

    def bubble(self) -> tuple[float, float] | None:
        """The idle share of the last step's pipeline, predicted from the stages' matrices and as it ran.

        None where there is no pipeline, or no step was seen. Every rank must ask.
        """
        return self.engine.bubble()

    def _own_part(self, batch: Batch) -> Batch:
        return context_parallel.cut(batch.rows_of(self.mesh["dp"]), self.mesh["cp"], self.context)

    def _total(self, loss: Tensor) -> Tensor:
        return comm.all_reduce(loss.double(), self.mesh["pp", "dp", "cp"])


def build(
    config: GPTConfig,
    mesh: Mesh,
    model: GPT,
    bucket_bytes: float = BUCKET_BYTES,
    microbatches: int = 1,
    schedule: str = "1f1b",
    chunks: int | None = None,
    sequence_parallel: bool = False,
    context: str = "zigzag",
) -> Blend:
    """Split ``model``, a full copy that is the same on every rank, over ``mesh``; in place. Parameters keep their names.

    ``microbatches`` is per rank and step. ``schedule`` and ``chunks`` (per rank) are the pipeline's, ``context`` is the method of
    context parallelism, and ``bucket_bytes`` the size of a gradient bucket.
    """
    if microbatches < 1:
        raise ValueError(f"microbatches={microbatches}: a step is at least one microbatch")
    by_sequence = sequence_parallel and mesh.sizes["tp"] > 1
    if mesh.sizes["tp"] > 1:  # alone, torch's own layers do the same with less to do
        tensor_parallel.parallelize(model, mesh["tp"], by_sequence)
    expert_parallel.parallelize(model, mesh, by_sequence)
    context_parallel.parallelize(model, mesh["cp"], context)
    for layer in expert_parallel.moe_layers(model):
        layer.auxiliary_scale = 1 / microbatches
    if mesh.sizes["pp"] == 1:
        return Blend(Whole(model, mesh, microbatches, bucket_bytes), mesh, context)
    plan = build_schedule(schedule, mesh.sizes["pp"], microbatches, chunks)
    return Blend(Staged(Pipeline(model, plan, mesh), mesh, bucket_bytes), mesh, context)

"""Data parallel with its communication hidden behind the backward pass (see ``buckets``)."""

from __future__ import annotations

from torch import Tensor

from minipar import comm
from minipar.choices import BUCKET_BYTES
from minipar.data import Batch
from minipar.data_parallel.buckets import Buckets
from minipar.data_parallel.replicas import broadcast_buffers, start_equal
from minipar.mesh import Mesh
from minipar.model import GPT
from minipar.trace import tracer


class Overlapped:
    """A GPT on every rank of the axis ``dp``; each step may be cut into microbatches, and only the last one communicates."""

    def __init__(self, model: GPT, mesh: Mesh, bucket_bytes: float = BUCKET_BYTES, microbatches: int = 1) -> None:
        self.model, self.mesh, self.microbatches = model, mesh, microbatches
        start_equal(model, mesh)
        self.buckets = Buckets(model, mesh, bucket_bytes)

    def step(self, batch: Batch) -> Tensor:
        """Forward and backward on this rank's rows of the global ``batch``; returns the global mean loss."""
        broadcast_buffers(self.model, self.mesh)
        *earlier, last = batch.rows_of(self.mesh["dp"]).parts(self.microbatches)
        total: Tensor | float = 0.0
        for i, part in enumerate(earlier):
            loss = self._forward(part, i)
            self._backward(loss, i)
            total = total + loss.detach()
        loss = self._forward(last, len(earlier))
        mean = comm.async_all_reduce_(total + loss.detach(), self.mesh["dp"])  # known before the backward pass: leaves first
        with self.buckets.gather():
            self._backward(loss, len(earlier))
        return mean.wait()

    def _forward(self, part: Batch, microbatch: int) -> Tensor:
        """One microbatch's share of the global mean loss."""
        with tracer.during("forward"), tracer.span("F", microbatch=microbatch):
            return self.model.loss(part)

    def _backward(self, loss: Tensor, microbatch: int) -> None:
        with tracer.during("backward"), tracer.span("B", microbatch=microbatch):
            loss.backward()

"""Data parallel with its communication hidden behind the backward pass (see ``buckets``)."""

from __future__ import annotations

from torch import Tensor

from minipar import comm
from minipar.data import Batch
from minipar.data_parallel.buckets import BUCKET_BYTES, Buckets
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
        loss = sum((self._accumulate(part, i) for i, part in enumerate(earlier)), start=0.0)
        with self.buckets.gather():
            loss = loss + self._accumulate(last, len(earlier))
        return comm.all_reduce_(loss, self.mesh["dp"])

    def _accumulate(self, part: Batch, microbatch: int) -> Tensor:
        """Add the gradients of one microbatch; returns its share of the global mean loss."""
        with tracer.during("forward"), tracer.span("F", microbatch=microbatch):
            loss = self.model.loss(part)
        with tracer.during("backward"), tracer.span("B", microbatch=microbatch):
            loss.backward()
        return loss.detach()

"""A GPT on a mesh: the one place that puts the techniques together."""

from __future__ import annotations

from minipar.data_parallel import Overlapped
from minipar.data_parallel.buckets import BUCKET_BYTES
from minipar.ledger import Layout
from minipar.mesh import Mesh
from minipar.model import GPT, GPTConfig


def build(config: GPTConfig, mesh: Mesh, model: GPT, bucket_bytes: float = BUCKET_BYTES, microbatches: int = 1) -> Layout:
    """Split ``model``, a full copy of the reference, over ``mesh``."""
    for axis in ("pp", "cp", "tp", "ep"):
        if mesh.sizes[axis] > 1:
            raise ValueError(f"{axis} {mesh.sizes[axis]} is not put together here yet: use dp alone")
    return Overlapped(model, mesh, bucket_bytes, microbatches)

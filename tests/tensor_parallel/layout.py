"""A GPT split by tensor and context parallelism, as the ledger wants it."""

from torch import Tensor

from minipar import GPT, GPTConfig, Mesh, comm, context_parallel, tensor_parallel
from minipar.data import Batch
from minipar.parameters import sync_gradients


class Layout:
    """``tp`` holds options of ``tensor_parallel.parallelize``, ``cp`` those of ``context_parallel.parallelize``."""

    def __init__(self, model: GPT, mesh: Mesh, tp: dict | None = None, cp: dict | None = None) -> None:
        self.mesh, self.cp = mesh, cp
        self.model = model
        if tp is not None:
            tensor_parallel.parallelize(model, mesh["tp"], **tp)
        if cp is not None:
            context_parallel.parallelize(model, mesh["cp"], **cp)

    def step(self, batch: Batch) -> Tensor:
        batch = batch.rows_of(self.mesh["dp"])
        if self.cp is not None:
            batch = context_parallel.cut(batch, self.mesh["cp"], **self.cp)
        loss = self.model.loss(batch)
        loss.backward()
        sync_gradients(self.model.parameters(), self.mesh)
        return comm.all_reduce(loss, self.mesh["dp", "cp"])


def builder(tp: dict | None = None, cp: dict | None = None):
    def build(config: GPTConfig, mesh: Mesh, model: GPT) -> Layout:
        return Layout(model, mesh, tp, cp)

    return build

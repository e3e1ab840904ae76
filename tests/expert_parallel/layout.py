"""A MoE GPT whose rows, sequence or matrices are split, with its experts over the mesh, as the ledger wants it."""

from torch import Tensor

from minipar import GPT, GPTConfig, Mesh, comm, tensor_parallel
from minipar.data import Batch
from minipar.expert_parallel import parallelize
from minipar.parameters import sync_gradients


class Layout:
    """``tp`` (None: replicated over that axis) holds options of ``tensor_parallel.parallelize``."""

    def __init__(self, model: GPT, mesh: Mesh, tp: dict | None = None) -> None:
        self.mesh = mesh
        if tp is not None:
            tensor_parallel.parallelize(model, mesh["tp"], **tp)
        self.model = parallelize(model, mesh, sequence_parallel=bool(tp and tp.get("sequence_parallel")))

    def step(self, batch: Batch) -> Tensor:
        loss = self.model.loss(batch.rows_of(self.mesh["dp"]))
        loss.backward()
        sync_gradients(self.model.parameters(), self.mesh)
        return comm.all_reduce(loss, self.mesh["dp"])


def builder(tp: dict | None = None):
    def build(config: GPTConfig, mesh: Mesh, model: GPT) -> Layout:
        return Layout(model, mesh, tp)

    return build

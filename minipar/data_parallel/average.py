"""Data parallel in its plainest form: backward, then one all-reduce.

    rank 0   | forward | backward            | all-reduce | step |
    rank 1   | forward | backward            | all-reduce | step |

What every rank gets must be the gradient of the mean loss over *all* tokens. Ranks hold unequal numbers of tokens, so the mean of
the ranks' own means is something else. Two ways are right: sum each rank's loss over its tokens and divide by the global count
(``Average``, and all of minipar); or weight each rank's mean by its share of the tokens (``average_gradients``).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from minipar import comm
from minipar.data import Batch
from minipar.data_parallel.replicas import broadcast_buffers, start_equal
from minipar.mesh import Axis, Mesh
from minipar.model import GPT
from minipar.parameters import sync_gradients
from minipar.trace import tracer


class Average:
    """A GPT on every rank of the axis ``dp``. The gradients are summed once the backward pass is over."""

    def __init__(self, model: GPT, mesh: Mesh) -> None:
        self.model, self.mesh = model, mesh
        start_equal(model, mesh)

    def step(self, batch: Batch) -> Tensor:
        """Forward and backward on this rank's rows of the global ``batch``; the global mean loss."""
        broadcast_buffers(self.model, self.mesh)
        with tracer.during("forward"), tracer.span("F"):
            loss = self.model.loss(batch.rows_of(self.mesh["dp"]))  # sum over own tokens / global count
        with tracer.during("backward"), tracer.span("B"):
            loss.backward()
        sync_gradients(self.model.parameters(), self.mesh)
        return comm.all_reduce(loss, self.mesh["dp"])


def average_gradients(params: Iterable[nn.Parameter], tokens: int, axis: Axis) -> None:
    """Turn the gradients of each rank's own *mean* loss, over ``tokens`` tokens, into those of the mean over all tokens.

    Each rank's gradient counts by its share of the tokens. A rank without tokens adds nothing, whatever its gradient is.
    """
    total = comm.all_reduce(torch.tensor(tokens), axis).item()
    for param in params:
        own = torch.zeros_like(param) if param.grad is None or not tokens else param.grad * (tokens / total)
        param.grad = comm.all_reduce_(own, axis)

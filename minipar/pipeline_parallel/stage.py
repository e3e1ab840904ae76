"""A stage: consecutive layers on one rank, their forward, and their backward whole or split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from minipar.data import Batch
from minipar.pipeline_parallel.weight_queue import WeightQueue, deferring

LossSum = Callable[[Tensor, Tensor], Tensor]  # (scores, targets) -> the loss summed over the targets that count


class Stage:
    """The layers of one stage, ``first_layer`` and following of the whole model.

    ``split``: the microbatches whose backward comes in halves. ``loss_sum`` is given to the last stage only.
    """

    def __init__(
        self,
        index: int,
        layers: Sequence[nn.Module],
        first_layer: int,
        split: Collection[int] = (),
        loss_sum: LossSum | None = None,
    ) -> None:
        self.index, self.layers, self.first_layer, self.loss_sum = index, list(layers), first_layer, loss_sum
        self.split, self.queue = split, WeightQueue()
        self.draws = [_draws(layer) for layer in self.layers]
        self.matrix_elements = sum(matrix_elements(layer) for layer in self.layers)
        self._held: dict[int, tuple[Tensor | None, Tensor]] = {}  # microbatch -> (input, output), until its backward

    def forward(self, microbatch: int, batch: Batch, received: Tensor | None, seeds: tuple[int, ...] = ()) -> Tensor:
        """The activations to pass on, or this microbatch's share of the mean loss. ``received``: None on the first stage.

        Every layer draws its dropout masks from ``seeds``, its place in the model and the microbatch: they are the same for any
        schedule and any cut, and when a layer is recomputed.
        """
        x = received
        if x is not None and x.is_floating_point():
            x.requires_grad_()
        with self._deferring(microbatch):
            y = self._layers(batch, x, (*seeds, microbatch))
            if self.loss_sum is not None:
                y = self.loss_sum(y, batch.targets) / batch.total  # the GLOBAL count: a mean of means is another number
        self._held[microbatch] = (x, y)
        return y.detach()

    def _layers(self, batch: Batch, x: Tensor | None, seeds: tuple[int, ...]) -> Tensor:
        for offset, layer in enumerate(self.layers):
            with replayable(*seeds, self.first_layer + offset) if self.draws[offset] else nullcontext():
                if x is not None:
                    x = layer(x)
                elif batch.positions is None:
                    x = layer(batch.inputs)
                else:
                    x = layer(batch.inputs, batch.positions)
        assert x is not None
        return x

    def backward(self, microbatch: int, grad: Tensor | None) -> Tensor | None:
        """Full backward: the gradient for the stage before (None on the first). ``grad``: None on the last stage."""
        x, y = self._held.pop(microbatch)
        if y.requires_grad:
            edge, grad = get_gradient_edge(y), torch.ones_like(y) if grad is None else grad
            with self._deferring(microbatch):  # recomputed layers must be what they were; given y itself, torch would suspend it
                torch.autograd.backward(edge, grad)
        return None if x is None else x.grad

    def input_grad(self, microbatch: int, grad: Tensor | None) -> Tensor | None:
        """The half of backward that the stage before waits for."""
        with self.queue.collect(microbatch):
            return self.backward(microbatch, grad)

    def weight_grad(self, microbatch: int) -> None:
        """The other half."""
        self.queue.run(microbatch)

    def _deferring(self, microbatch: int) -> AbstractContextManager[object]:
        """A backward that stays whole is left to autograd alone, which is faster."""
        return deferring(self.queue) if microbatch in self.split else nullcontext()

    @property
    def in_flight(self) -> int:
        """Microbatches whose activations this stage still holds."""
        return len(self._held) + len(self.queue)


@contextmanager
def replayable(*names: int) -> Iterator[None]:
    """Random numbers in here depend on ``names`` only; outside, the random state goes on as if nothing had been drawn."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        seed = 0
        for name in names:
            seed = (seed * 1_000_003 + name + 1) % 2**63
        torch.manual_seed(seed)
        yield


def _draws(layer: nn.Module) -> bool:
    """Whether the layer draws random numbers: some dropout in it has a probability above 0."""
    return any("dropout" in type(m).__name__.lower() and getattr(m, "p", 0) > 0 for m in layer.modules())


def matrix_elements(layer: nn.Module) -> int:
    """Of the parameters that every token is multiplied with: one multiplication and one addition each, forward."""
    looked_up = {id(p) for m in layer.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(p.numel() for p in layer.parameters() if p.dim() >= 2 and id(p) not in looked_up)

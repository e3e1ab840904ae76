"""Bytes that a training step holds on this rank, counted from the tensors themselves: the same on every machine.

with kept_for_backward(layout.model) as kept:
    layout.step(batch)
kept.most                                       # of activations, at the worst moment
held(layout.model, optimizer)                   # {"parameters": ..., "gradients": ..., "optimizer": ...}
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Kept:
    """Bytes of tensors that autograd keeps between forward and backward. ``now`` and ``most`` are in bytes."""

    def __init__(self, ignored: Iterable[Tensor] = ()) -> None:
        self.now = 0
        self.most = 0
        self._ignored = {x.untyped_storage().data_ptr() for x in ignored}
        self._known: dict[int, weakref.ref[Any]] = {}

    def note(self, x: Tensor) -> Tensor:
        """Count the memory of ``x`` from now until nobody holds it; memory that is known already costs nothing more."""
        storage = x.untyped_storage()
        key, nbytes = id(storage), storage.nbytes()
        if key in self._known or storage.data_ptr() in self._ignored:
            return x

        def gone(_: Any) -> None:
            self._known.pop(key, None)
            self.now -= nbytes

        self._known[key] = weakref.ref(storage, gone)
        self.now += nbytes
        self.most = max(self.most, self.now)
        return x


@contextmanager
def kept_for_backward(model: nn.Module) -> Iterator[Kept]:
    """Watch the enclosed passes; parameters and buffers of ``model``, which are held anyway, do not count."""
    kept = Kept([*model.parameters(), *model.buffers()])
    with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda x: x):
        yield kept


def held(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
    """Bytes of what outlives a step, by kind."""
    params = list(model.parameters())
    state = [] if optimizer is None else [x for values in optimizer.state.values() for x in values.values()]
    return {
        "parameters": sum(map(_nbytes, params)),
        "gradients": sum(_nbytes(p.grad) for p in params if p.grad is not None),
        "optimizer": sum(_nbytes(x) for x in state if isinstance(x, Tensor)),
    }


def _nbytes(x: Tensor) -> int:
    return x.numel() * x.element_size()

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


class Storages:
    """The memory of tensors, counted once from when it is met until nobody holds it. ``now`` and ``most`` are in bytes."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def meet(self, x: Tensor) -> Tensor:
        """Count the memory of ``x``, unless it is known already."""
        self._know(x, x.untyped_storage().nbytes())
        return x

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """The memory of these, where it is not known already, costs nothing."""
        for x in tensors:
            self._know(x, 0)

    def _know(self, x: Tensor, cost: int) -> None:
        storage = x.untyped_storage()
        key = id(storage)
        if key in self._known:
            return

        def gone(_: Any) -> None:
            self._known.pop(key, None)
            self.now -= cost

        self._known[key] = weakref.ref(storage, gone)
        self.now += cost
        self.most = max(self.most, self.now)


@contextmanager
def kept_for_backward(model: nn.Module) -> Iterator[Storages]:
    """Watch what autograd keeps in the enclosed passes; the model's parameters and buffers, held anyway, do not count."""
    kept = Storages()
    kept.leave_out([*model.parameters(), *model.buffers()])
    with torch.autograd.graph.saved_tensors_hooks(kept.meet, lambda x: x):
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

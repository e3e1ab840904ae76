"""The most bytes of tensors alive at once: counted from the tensors themselves, so the same on every machine."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakBytes(TorchDispatchMode):
    """Counts the storages that are made inside the ``with``, and forgets each when nobody holds it any more.

    ``most`` is the largest sum reached, in bytes. Tensors made before, and views of them, cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.most = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to be skipped would import the compiler: seconds on every rank

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._note(tensor, cost=0)
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._note(tensor, cost=tensor.untyped_storage().nbytes())
        return out

    def _note(self, tensor: torch.Tensor, cost: int) -> None:
        """Meet a tensor: one that is known already costs nothing more."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return

        def gone(_: Any) -> None:
            self._known.pop(key, None)
            self.now -= cost

        self._known[key] = weakref.ref(storage, gone)
        self.now += cost
        self.most = max(self.most, self.now)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

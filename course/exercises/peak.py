"""The most bytes of tensors alive at once: counted from the tensors themselves, so the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minipar.held import Storages


class PeakBytes(Storages, TorchDispatchMode):
    """Counts the storages that are made inside the ``with``, and forgets each when nobody holds it any more.

    ``most`` is the largest sum reached, in bytes. Tensors made before, and views of them, cost nothing.
    """

    def __init__(self) -> None:
        Storages.__init__(self)
        TorchDispatchMode.__init__(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to be skipped would import the compiler: seconds on every rank

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.leave_out(_tensors((args, kwargs)))
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self.meet(tensor)
        return out


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Those that an operator takes or gives. (torch's own walk knows every kind of tree, and takes a fifth of a counted step.)"""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(branch)

"""The ranks of all labs: one pool at a time, kept warm while the next run wants as many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minipar.hardware import Cluster

_lock = threading.Lock()
_kept: list[Any] = []


@contextmanager
def borrowed(n: int) -> Iterator[Any]:
    """``Ranks(n)`` on the CPU. Another lab that runs meanwhile waits its turn."""
    from course import Ranks

    with _lock:
        for ranks in [r for r in _kept if r.n != n or r.closed]:
            ranks.close()
            _kept.remove(ranks)
        if not _kept:
            _kept.append(Ranks(n, device="cpu"))
        yield _kept[0]


def close() -> None:
    """End the ranks that are kept."""
    with _lock:
        while _kept:
            _kept.pop().close()


def paced(hardware: Cluster | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as it runs on modelled hardware; None: as fast as this machine goes. Errors name it, not this wrapper."""

    def inside(*args: Any) -> Any:
        import torch.distributed as dist

        from minipar import comm

        comm.pace(hardware, dist.get_rank())
        try:
            return function(*args)
        finally:
            comm.pace(None)

    inside.__name__ = function.__name__
    return inside

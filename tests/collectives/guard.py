"""Sees every exchange of a collective, and objects to one that touches a buffer while a transfer has it."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager

import torch

from minipar import comm
from minipar.mesh import Axis, world


class TouchedError(AssertionError):
    """A buffer was changed or read while a transfer had it."""


class Guarded:
    """A pending exchange. Until it is waited for, the buffers to fill hold poison and the buffers to send must not change."""

    def __init__(self, sends, recvs, axis, launch) -> None:
        self.sends, self.recvs = sends, recvs
        self.sent = [x.clone() for x, _ in sends]
        self.arriving = [torch.empty_like(x) for x, _ in recvs]
        self.pending = launch([(x, to) for x, (_, to) in zip(self.sent, sends, strict=True)], self._into(), axis)
        for x, _ in recvs:
            x.fill_(float("nan"))
        self.waited = False

    def _into(self):
        return [(x, source) for x, (_, source) in zip(self.arriving, self.recvs, strict=True)]

    def wait(self):
        if not self.waited:
            self.waited = True
            self.pending.wait()
            for (x, to), before in zip(self.sends, self.sent, strict=True):
                if not torch.equal(x, before):
                    raise TouchedError(f"the buffer on its way to rank {to} was changed before it was sent")
            for (x, source), arrived in zip(self.recvs, self.arriving, strict=True):
                if not x.isnan().all():
                    raise TouchedError(f"the buffer for what comes from rank {source} was written before it arrived")
                x.copy_(arrived)
        return [x for x, _ in self.recvs]


@contextmanager
def guarded():
    """Yields the log of this rank's exchanges, each ``([ranks sent to], [ranks received from])``, in order of their launch."""
    real = comm.async_exchange
    log: list[tuple[list[int], list[int]]] = []

    def async_exchange(sends=(), recvs=(), axis: Axis | None = None) -> Guarded:
        log.append(([to for _, to in sends], [source for _, source in recvs]))
        return Guarded(list(sends), list(recvs), axis or world(), real)

    replaced = {
        "async_exchange": async_exchange,
        "exchange": lambda *a, **k: async_exchange(*a, **k).wait(),
        "send": lambda x, to, axis=None: async_exchange([(x, to)], [], axis).wait() and None,
        "recv": lambda like, source, axis=None: async_exchange([], [(torch.empty_like(like), source)], axis).wait()[0],
    }
    before = {name: getattr(comm, name) for name in replaced}
    for name, function in replaced.items():
        setattr(comm, name, function)
    try:
        yield log
    finally:
        for name, function in before.items():
            setattr(comm, name, function)


def stuck_ranks(logs: list[list[tuple[list[int], list[int]]]]) -> list[int]:
    """Which ranks never finish where nothing is buffered: an exchange ends only when each of its messages has met its other end.

    ``logs[rank]`` is the order of that rank's exchanges; it starts the next one when the one before has ended.
    """
    queues = [deque(log) for log in logs]
    started = [False] * len(logs)
    offered: dict[tuple[int, int, str], deque[list[bool]]] = {}
    waiting: list[list[list[bool]]] = [[] for _ in logs]
    progress = True
    while progress:
        progress = False
        for rank, queue in enumerate(queues):
            if queue and not started[rank]:
                started[rank] = progress = True
                sends, recvs = queue[0]
                waiting[rank] = [_offer(offered, rank, to, "send") for to in sends]
                waiting[rank] += [_offer(offered, source, rank, "recv") for source in recvs]
            if queue and all(flag[0] for flag in waiting[rank]):
                queue.popleft()
                started[rank], progress = False, True
    return [rank for rank, queue in enumerate(queues) if queue]


def _offer(offered, source: int, to: int, kind: str) -> list[bool]:
    """One end of a message; it is met when the other end is offered too."""
    met = [False]
    others = offered.setdefault((source, to, "recv" if kind == "send" else "send"), deque())
    if others:
        others.popleft()[0] = True
        met[0] = True
    else:
        offered.setdefault((source, to, kind), deque()).append(met)
    return met

"""Sees every exchange of a collective, and objects to one that touches a buffer while a transfer has it."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager

import torch

from minipar import comm
from minipar.mesh import Axis, world

Entry = tuple[list[int], list[int]] | int


class TouchedError(AssertionError):
    """A buffer was changed or read while a transfer had it."""


class Guarded:
    """A pending exchange. Until it is waited for, the buffers to fill hold poison and the buffers to send must not change."""

    def __init__(self, sends, recvs, axis, launch, log) -> None:
        self.sends, self.recvs, self.log, self.number = sends, recvs, log, len(log)
        log.append(([to for _, to in sends], [source for _, source in recvs]))
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
            self.log.append(self.number)
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
    """Yields the log of this rank: a launch is ``([ranks sent to], [ranks received from])``, a wait the place of its launch."""
    real = comm.async_exchange
    log: list[Entry] = []

    def async_exchange(sends=(), recvs=(), axis: Axis | None = None) -> Guarded:
        return Guarded(list(sends), list(recvs), axis or world(), real, log)

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


def stuck_ranks(logs: list[list[Entry]]) -> list[int]:
    """Which ranks never finish where nothing is buffered: a wait ends only when each message of its launch has met its other end.

    ``logs[rank]`` is what that rank did, in order; what is launched is under way while the rank goes on.
    """
    at = [0] * len(logs)
    offered: dict[tuple[int, int, str], deque[list[bool]]] = {}
    launched: list[dict[int, list[list[bool]]]] = [{} for _ in logs]
    progress = True
    while progress:
        progress = False
        for rank, log in enumerate(logs):
            while at[rank] < len(log):
                entry = log[at[rank]]
                if isinstance(entry, int):
                    if not all(met[0] for met in launched[rank][entry]):
                        break
                else:
                    launched[rank][at[rank]] = [_offer(offered, rank, to, "send") for to in entry[0]]
                    launched[rank][at[rank]] += [_offer(offered, source, rank, "recv") for source in entry[1]]
                at[rank] += 1
                progress = True
    return [rank for rank, log in enumerate(logs) if at[rank] < len(log)]


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

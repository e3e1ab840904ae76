"""Messages from one rank to another, several at once: all that an algorithm of its own needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from minipar import pacing, unwaited
from minipar.comm.pending import Pending, finished, to_wire, waiting, watched
from minipar.mesh import Axis, world
from minipar.trace import COMM, now, tracer

Message = tuple[torch.Tensor, int]  # a tensor and the rank, within the axis, at the other end
_numbers = itertools.count()  # in the order in which exchanges are started


def async_exchange(sends: Sequence[Message] = (), recvs: Sequence[Message] = (), axis: Axis | None = None) -> Pending:
    """Start several messages at once: ``sends`` are ``(tensor, to)``, ``recvs`` are ``(tensor to fill, source)``.

    Messages between two ranks arrive in the order given. ``wait()`` returns the list of received tensors.
    """
    axis = axis or world()
    for _, peer in (*sends, *recvs):
        if not 0 <= peer < axis.size or peer == axis.rank:
            raise ValueError(f"rank {axis.rank} of axis {axis.name} (size {axis.size}) cannot exchange with rank {peer}")
    if not sends and not recvs:
        return finished([])
    pacer = pacing.current()
    return Exchange(sends, recvs, axis) if pacer is None else PacedExchange(sends, recvs, axis, pacer)


def exchange(sends: Sequence[Message] = (), recvs: Sequence[Message] = (), axis: Axis | None = None) -> list[torch.Tensor]:
    """Send and receive several messages at once; returns the received tensors."""
    with pacing.call():
        return async_exchange(sends, recvs, axis).wait()


def send(x: torch.Tensor, to: int, axis: Axis | None = None) -> None:
    """Send ``x`` to rank ``to`` of the axis."""
    exchange([(x, to)], [], axis)


def recv(like: torch.Tensor, source: int, axis: Axis | None = None) -> torch.Tensor:
    """A new tensor shaped like ``like``, received from rank ``source`` of the axis."""
    return exchange([], [(torch.empty_like(like, requires_grad=False), source)], axis)[0]


class Exchange(Pending):
    """Messages under way; of their time only what this rank waits is known. Kept short: a ring makes seven of these in 5 ms."""

    _waited = True  # until there is something to wait for

    def __init__(self, sends: Sequence[Message], recvs: Sequence[Message], axis: Axis) -> None:
        self._axis, self._phase = axis, tracer.phase
        self._recvs = recvs
        self._out = [(to_wire(x.detach() if x.requires_grad else x, axis), peer) for x, peer in sends]
        self._into = [(to_wire(x, axis), peer) for x, peer in recvs]
        if unwaited.kept:
            unwaited.make_room(self._ways())
        self._number = next(_numbers)
        self._works = self._start()  # kept: dropping one at once waits for gloo's thread to let go of it
        self._waited = False

    def wait(self) -> list[torch.Tensor]:
        if not self._waited:
            self._waited = True
            began = now()
            with waiting("send" if self._out else "recv", self._axis, (self._out or self._into)[0][0]):
                for work in self._works:
                    work.wait()
                times = self._times(began)
            if tracer.enabled:
                self._trace(times)
            self._value = [x if wire is x else x.copy_(wire) for (x, _), (wire, _) in zip(self._recvs, self._into, strict=True)]
            if unwaited.kept:
                unwaited.passed(self._number, self._ways())
            self._out.clear()  # the sent tensors were kept alive until here
        return self._value

    def __del__(self) -> None:
        if not self._waited:
            unwaited.keep(self._number, self._ways(), self._works)

    def _ways(self) -> unwaited.Ways:
        group = self._axis.group
        return frozenset([(group, "to", peer) for _, peer in self._out] + [(group, "from", peer) for _, peer in self._into])

    def _start(self) -> list[dist.Work]:
        return start(self._out, self._into, self._axis)

    def _times(self, began: float) -> list[tuple[float, float]]:
        """``(start, end)`` of each message, the sent ones first."""
        return [(began, now())] * (len(self._out) + len(self._into))

    def _trace(self, times: list[tuple[float, float]]) -> None:
        axis, phase, time = self._axis, self._phase, iter(times)
        for wire, peer in self._out:
            start, end = next(time)
            tracer.add("send", COMM, start, end, axis.name, wire.nbytes, (axis.ranks[peer],), -1, -1, phase)
        for _, peer in self._into:
            start, end = next(time)
            tracer.add("recv", COMM, start, end, axis.name, 0, (axis.ranks[peer],), -1, -1, phase)


class PacedExchange(Exchange):
    """Messages that take their modelled time: a small one goes ahead of each and says when its transfer started, and how late.

    (In one message they would need a copy of every tensor, which would count as memory that the rank keeps.)
    """

    def __init__(self, sends: Sequence[Message], recvs: Sequence[Message], axis: Axis, pacer: pacing.Pacer) -> None:
        self._pacer = pacer
        with pacer:
            super().__init__(sends, recvs, axis)

    def wait(self) -> list[torch.Tensor]:
        with self._pacer:
            return super().wait()

    def _start(self) -> list[dist.Work]:
        ranks, late = self._axis.ranks, self._pacer.late
        self._sent = [self._pacer.send(ranks[peer], wire.nbytes) for wire, peer in self._out]
        self._starts = [torch.empty(2, dtype=torch.float64) for _ in self._into]
        told = [torch.tensor([began, late], dtype=torch.float64) for began, _ in self._sent]
        return start(_behind(told, self._out), _behind(self._starts, self._into), self._axis)

    def _times(self, began: float) -> list[tuple[float, float]]:
        arrived = []
        for (wire, peer), stamp in zip(self._into, self._starts, strict=True):
            sent, late = stamp.tolist()
            self._pacer.excuse(late)
            arrived.append(self._pacer.receive(self._axis.ranks[peer], wire.nbytes, sent))
        self._pacer.wait(self._sent + arrived)
        return self._sent + arrived


def start(out: Sequence[Message], into: Sequence[Message], axis: Axis) -> list[dist.Work]:
    """Start the messages, receives first: one that finds its receive waiting need not ask.

    NCCL wants them as one batch: two ranks that both send first would wait for each other.
    """
    group = axis.group
    if (out or into)[-1][0].is_cuda:  # the last one is no time stamp
        ops = [(dist.isend, message) for message in out] + [(dist.irecv, message) for message in into]
        return dist.batch_isend_irecv([dist.P2POp(op, wire, axis.ranks[peer], group) for op, (wire, peer) in ops])
    if group is not None and not watched():  # torch's wrappers take longer than gloo needs for a small message
        return [group.recv([wire], peer, 0) for wire, peer in into] + [group.send([wire], peer, 0) for wire, peer in out]
    works = [dist.irecv(wire, group=group, group_src=peer) for wire, peer in into]
    works += [dist.isend(wire, group=group, group_dst=peer) for wire, peer in out]
    return [work for work in works if work is not None]


def _behind(stamps: Sequence[torch.Tensor], messages: Sequence[Message]) -> list[Message]:
    """Every message with its time stamp, to the same rank, before it."""
    return [one for stamp, (wire, peer) in zip(stamps, messages, strict=True) for one in ((stamp, peer), (wire, peer))]

"""The ring with its pieces cut into segments, and with receives posted before their messages come.

    plain        | receive piece    | add | receive piece    | add |
    segmented    | receive | receive | receive | receive |
                           | add |   | add |   | add |   | add |

While one segment is added, the next is on its way. Only the first half adds: the finished sums travel in whole pieces. A message
that finds its receive waiting leaves at once; one that does not must first ask. The bytes are those of the plain ring.
Gloo and NCCL work like this inside. NCCL runs the messages of a rank one after the other, so there a receive that waits would hold
up the send behind it, for ever: between GPUs this is the plain ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from minipar import comm
from minipar.collectives import ring
from minipar.collectives.pieces import add, cut, flat
from minipar.mesh import Axis, world

SEGMENT_BYTES = 2**21
IN_FLIGHT = 3  # segments with memory to arrive in: some are on their way while one is added


class _Step(NamedTuple):
    outgoing: torch.Tensor
    target: torch.Tensor
    adds: bool  # the first half adds what arrives; the second half keeps it as it is
    needs: int  # how many receives must be over before ``outgoing`` may leave


def all_reduce_(x: torch.Tensor, axis: Axis | None = None, segment_bytes: int = SEGMENT_BYTES) -> torch.Tensor:
    """Sum ``x`` over the axis in place. Sends what the plain ring sends; partial sums in segments of about ``segment_bytes``."""
    axis = axis or world()
    if x.is_cuda:
        return ring.all_reduce_(x, axis)
    pieces = cut(flat(x), axis.size)
    steps = list(_steps(pieces, segments_of(len(pieces[0]) * x.element_size(), segment_bytes), axis))
    sends: list[comm.Pending] = []
    receives = _Receives(steps, sends, axis)
    for step in steps:
        receives.finish(step.needs)
        sends.append(comm.async_exchange([(step.outgoing, (axis.rank + 1) % axis.size)], [], axis))
        receives.post()
    receives.finish(len(steps))
    for send in sends:
        send.wait()
    return x


def segments_of(piece_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Into how many segments a piece is cut."""
    return max(1, -(-piece_bytes // segment_bytes))


def _steps(pieces: list[torch.Tensor], segments: int, axis: Axis) -> Iterator[_Step]:
    """What this rank sends and receives, in order: hop by hop around the ring, the partial sums segment by segment."""
    n, rank = axis.size, axis.rank
    parts = [cut(piece, segments) for piece in pieces]
    for hop in range(n - 1):
        for i in range(segments):  # it arrived one hop earlier
            needs = max(0, (hop - 1) * segments + i + 1)
            yield _Step(parts[(rank - 1 - hop) % n][i], parts[(rank - 2 - hop) % n][i], True, needs)
    for hop in range(n - 1):
        yield _Step(pieces[(rank - hop) % n], pieces[(rank - 1 - hop) % n], False, (n - 1) * segments + hop)


class _Receives:
    """The receives of all steps, in order. As many as have memory to arrive in wait for their messages."""

    def __init__(self, steps: list[_Step], sends: list[comm.Pending], axis: Axis) -> None:
        self.steps, self.sends, self.axis = steps, sends, axis
        adding = [step.target for step in steps if step.adds]
        self.partial = len(adding)
        self.free = [torch.empty_like(max(adding, key=len)) for _ in adding[:IN_FLIGHT]]
        self.waiting: deque[tuple[comm.Pending, torch.Tensor]] = deque()
        self.posted = self.over = 0
        self.post()

    def finish(self, count: int) -> None:
        """Have the first ``count`` receives over, and what they brought added."""
        while self.over < count:
            pending, memory = self.waiting.popleft()
            (arrived,) = pending.wait()
            step = self.steps[self.over]
            if step.adds:
                add(step.target, arrived)
                self.free.append(memory)
            self.over += 1
            self.post()

    def post(self) -> None:
        """Let every receive wait for its message that may."""
        while self.posted < len(self.steps) and self._has_memory(self.steps[self.posted]):
            step = self.steps[self.posted]
            memory = self.free.pop() if step.adds else step.target
            receive = (memory[: len(step.target)], (self.axis.rank - 1) % self.axis.size)
            self.waiting.append((comm.async_exchange([], [receive], self.axis), memory))
            self.posted += 1

    def _has_memory(self, step: _Step) -> bool:
        if step.adds:
            return bool(self.free)
        if self.over < self.partial:
            return False  # the target still holds a partial sum
        for send in self.sends[: self.partial]:
            send.wait()
        return True

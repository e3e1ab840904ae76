"""The ring with its pieces cut into segments, so that a rank adds one segment while the next is on its way.

    plain        | receive piece    | add | receive piece    | add |
    segmented    | receive | receive | receive | receive |
                           | add |   | add |   | add |   | add |

Same messages in the same order around the same ring, only more and smaller ones. A segment that stays in the processor's cache
between its arrival and its addition saves a trip to memory as well. Gloo and NCCL work like this inside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from minipar import comm
from minipar.collectives.pieces import add, cut, flat
from minipar.mesh import Axis, world

SEGMENT_BYTES = 2**21
IN_FLIGHT = 2  # segments: one arrives while the one before it is added


class _Step(NamedTuple):
    outgoing: torch.Tensor
    target: torch.Tensor
    adds: bool  # reduce-scatter adds what arrives; all-gather keeps it as it is


def all_reduce_(x: torch.Tensor, axis: Axis | None = None, segment_bytes: int = SEGMENT_BYTES) -> torch.Tensor:
    """Sum ``x`` over the axis in place. Sends what the plain ring sends, in segments of at most about ``segment_bytes``."""
    axis = axis or world()
    pieces = cut(flat(x), axis.size)
    segments = segments_of(len(pieces[0]) * x.element_size(), segment_bytes)
    left, right = (axis.rank - 1) % axis.size, (axis.rank + 1) % axis.size
    depth = min(IN_FLIGHT, segments)  # a segment is passed on in the hop after its arrival, so this many are independent
    scratch = [torch.empty_like(cut(pieces[0], segments)[0]) for _ in range(depth)]
    flying: deque[tuple[comm.Pending, _Step]] = deque()
    landed = None  # held until another one is under way: gloo is quicker when a transfer is not dropped the moment it is done
    for i, step in enumerate(_steps([cut(piece, segments) for piece in pieces], axis)):
        if len(flying) == depth:
            landed = _land(*flying.popleft())
        into = scratch[i % depth][: len(step.target)] if step.adds else step.target
        flying.append((comm.async_exchange([(step.outgoing, right)], [(into, left)], axis), step))
    while flying:
        landed = _land(*flying.popleft())
    del landed
    return x


def segments_of(piece_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Into how many segments a piece is cut."""
    return max(1, -(-piece_bytes // segment_bytes))


def _steps(pieces: list[list[torch.Tensor]], axis: Axis) -> Iterator[_Step]:
    """What this rank sends and receives, in order: hop by hop around the ring, segment by segment. ``pieces[piece][segment]``."""
    n = axis.size
    for hop in range(2 * (n - 1)):
        outgoing, targets = pieces[(axis.rank - 1 - hop) % n], pieces[(axis.rank - 2 - hop) % n]
        for out, target in zip(outgoing, targets, strict=True):
            yield _Step(out, target, adds=hop < n - 1)


def _land(pending: comm.Pending, step: _Step) -> comm.Pending:
    (arrived,) = pending.wait()
    if step.adds:
        add(step.target, arrived)
    return pending

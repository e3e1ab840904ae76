"""The ring with its pieces cut into segments, and with every receive posted before its message comes.

    plain        | receive piece    | add | receive piece    | add |
    segmented    | receive | receive | receive | receive |
                           | add |   | add |   | add |   | add |

While one segment is added, the next is on its way. Only the first half adds: the finished sums travel in whole pieces. The bytes
are those of the plain ring.

A message that finds its receive waiting leaves at once; one that does not must first ask. So a partial sum collects in the memory
that it arrives in, never in the tensor: the receives of the whole first half wait from the start, and each of its hops frees one
piece of the tensor, where a finished sum may arrive. The price is memory for ``(n - 1) / n`` of the tensor.

Gloo and NCCL work like this inside. NCCL runs the messages of a rank one after the other, so there a receive that waits would hold
up the send behind it, for ever: between GPUs this is the plain ring.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from minipar import comm
from minipar.collectives import ring
from minipar.collectives.pieces import add, cut, flat
from minipar.mesh import Axis, world

SEGMENT_BYTES = 2**22  # handing over a smaller one costs more than adding it meanwhile saves


def all_reduce_(x: torch.Tensor, axis: Axis | None = None, segment_bytes: int = SEGMENT_BYTES) -> torch.Tensor:
    """Sum ``x`` over the axis in place. Sends what the plain ring sends; partial sums in segments of about ``segment_bytes``."""
    axis = axis or world()
    if x.is_cuda or axis.size == 1:
        return ring.all_reduce_(x, axis)
    n, rank = axis.size, axis.rank
    pieces = cut(flat(x), n)
    parts = [cut(piece, segments_of(len(pieces[0]) * x.element_size(), segment_bytes)) for piece in pieces]
    partial = [[_receive(torch.empty_like(part), axis) for part in parts[rank - 2 - hop]] for hop in range(n - 1)]
    first = [_send(part, axis) for part in parts[rank - 1]]
    sends, finished = [*first], []
    for hop, arriving in enumerate(partial):
        mine = parts[rank - 2 - hop]
        sends += _pass_on(arriving, mine, axis) if hop < n - 2 else _complete(arriving, mine, pieces[rank], axis)
        _finish(first)  # they leave from where the first finished sum will arrive
        finished.append(_receive(pieces[rank - 1 - hop], axis))
    sends += [_send(pending.wait()[0], axis) for pending in finished[:-1]]
    _finish(finished + sends)
    return x


def segments_of(piece_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Into how many segments a piece is cut."""
    return max(1, -(-piece_bytes // segment_bytes))


def _pass_on(arriving: list[comm.Pending], mine: list[torch.Tensor], axis: Axis) -> Iterator[comm.Pending]:
    """Add this rank's share to each partial sum when it comes, and send it to the right."""
    for pending, share in zip(arriving, mine, strict=True):
        (partial,) = pending.wait()
        add(partial, share)
        yield _send(partial, axis)


def _complete(arriving: list[comm.Pending], mine: list[torch.Tensor], piece: torch.Tensor, axis: Axis) -> Iterator[comm.Pending]:
    """The last shares of this rank's own ``piece`` come in; its sum starts on its way round."""
    for pending, share in zip(arriving, mine, strict=True):
        (partial,) = pending.wait()
        add(share, partial)
    yield _send(piece, axis)


def _send(x: torch.Tensor, axis: Axis) -> comm.Pending:
    return comm.async_exchange([(x, (axis.rank + 1) % axis.size)], [], axis)


def _receive(into: torch.Tensor, axis: Axis) -> comm.Pending:
    return comm.async_exchange([], [(into, (axis.rank - 1) % axis.size)], axis)


def _finish(transfers: list[comm.Pending]) -> None:
    for pending in transfers:
        pending.wait()

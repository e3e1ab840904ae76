"""The ring with its pieces cut into segments, and with the receive of a short message posted before it comes.

    plain        | receive piece    | add | receive piece    | add |
    segmented    | receive | receive | receive | receive |
                           | add |   | add |   | add |   | add |

While one segment is added, the next is on its way. The bytes are those of the plain ring: what a rank sends are the segments in
the ring's order, the first half as partial sums, the second half as finished ones, and what it passes on is what came as many
messages ago as a piece has segments. With 3 ranks and 2 segments, rank 0:

    message      0    1    2    3  |  4    5    6    7
    sends        4    5    2    3  |  0    1    4    5      segments 0 and 1 are piece 0, which rank 0 completes
    receives     2    3    0    1  |  4    5    2    3      the first half into scratch memory, added when it has come

A message that finds its receive waiting leaves at once; one that does not must first ask, which counts while messages are short.
So a rank posts the receive of a short message together with its own send of the message before. Partial sums then arrive in one
more segment of scratch memory than a piece has, used again and again; a finished sum arrives in its place in the tensor, which was
sent at least two messages ago. (Two ranks, or three without segments, have too few messages between for that: there a receive is
posted with the send.) So it is for long messages: a socket copies faster from and to memory that is still in the cache, and one
more place would push more out of it than asking costs.

Gloo and NCCL work like this inside. NCCL runs the messages of a rank one after the other, so there a receive that waits would hold
up the send behind it, for ever: between GPUs this is the plain ring.
"""

from __future__ import annotations

import torch

from minipar import comm
from minipar.collectives import ring
from minipar.collectives.pieces import add, cut, flat
from minipar.mesh import Axis, world

SEGMENT_BYTES = 2**22  # handing over a smaller one costs more than adding it meanwhile saves
SHORT_BYTES = 2**20  # a longer message takes more from the cache than it would lose by asking


def all_reduce_(x: torch.Tensor, axis: Axis | None = None, segment_bytes: int = SEGMENT_BYTES) -> torch.Tensor:
    """Sum ``x`` over the axis in place. Sends what the plain ring sends, in segments of about ``segment_bytes``."""
    axis = axis or world()
    n, rank = axis.size, axis.rank
    if x.is_cuda or n == 1:
        return ring.all_reduce_(x, axis)
    left, right = (rank - 1) % n, (rank + 1) % n
    pieces = cut(flat(x), n)
    segments = segments_of(pieces[0].nbytes, segment_bytes)
    half, ahead = (n - 1) * segments, ahead_of(n, segments, pieces[0].nbytes)
    sent = [part for hop in range(n) for part in cut(pieces[rank - 1 - hop], segments)]
    arriving = _scratch(sent[segments:], segments + ahead) + sent[:half]
    transfers: list[comm.Pending] = []
    for posted in range(2 * half + ahead):
        leaving = posted - ahead
        came = leaving - segments
        if came >= 0:
            transfers[came].wait()
            if came < half:
                add(sent[leaving], arriving[came])
        sends = [(sent[leaving % len(sent)], right)] if leaving >= 0 else []
        recvs = [(arriving[posted], left)] if posted < 2 * half else []
        transfers.append(comm.async_exchange(sends, recvs, axis))
    for transfer in transfers[-(segments + ahead) :]:
        transfer.wait()
    return x


def segments_of(piece_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Into how many segments a piece is cut."""
    return max(1, -(-piece_bytes // segment_bytes))


def ahead_of(n: int, segments: int, piece_bytes: int) -> int:
    """How many messages ahead a receive is posted: 1 where they are short and what it overwrites has been sent by then, else 0."""
    return 1 if piece_bytes <= segments * SHORT_BYTES and (n - 2) * segments >= 2 else 0


def _scratch(arriving: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    """Memory for each of ``arriving``, in turns in ``count`` places."""
    sizes = [part.numel() for part in arriving]
    longest = max(sizes)
    places = arriving[0].new_empty(count, longest).unbind()
    return [places[i % count] if size == longest else places[i % count][:size] for i, size in enumerate(sizes)]

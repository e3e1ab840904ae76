"""All-to-all in pairs: in step s every rank sends to the one s places to the right, and receives from s places to the left.

    step 1    0->1  1->2  2->3  3->0
    step 2    0->2  1->3  2->0  3->1
    step 3    0->3  1->0  2->1  3->2

In no step do two ranks send to the same one, so that no link has to serve two transfers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minipar import comm
from minipar.mesh import Axis, world


def all_to_all(
    x: torch.Tensor, axis: Axis | None = None, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None
) -> torch.Tensor:
    """Send ``send_counts[r]`` rows of ``x`` to each rank r, in order; receive ``recv_counts[r]`` rows from each, joined in order.

    Without counts the rows are cut evenly, and must divide. A rank sends the rows that leave it, once, straight to their goal.
    """
    axis = axis or world()
    if send_counts is None:
        if len(x) % axis.size:
            raise ValueError(f"{len(x)} rows do not divide over {axis.size} ranks: pass send_counts and recv_counts")
        send_counts = [len(x) // axis.size] * axis.size
    recv_counts = send_counts if recv_counts is None else recv_counts
    outgoing = x.detach().contiguous().split(list(send_counts))
    incoming = list(x.new_empty(sum(recv_counts), *x.shape[1:]).split(list(recv_counts)))
    incoming[axis.rank].copy_(outgoing[axis.rank])
    for step in range(1, axis.size):
        to, source = (axis.rank + step) % axis.size, (axis.rank - step) % axis.size
        comm.exchange([(outgoing[to], to)], [(incoming[source], source)], axis)
    return torch.cat(incoming)

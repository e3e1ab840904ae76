"""When the buckets leave and arrive: a step of data parallel training as a predicted timeline.

    compute   | F 0 | F 1 | F 2 | F 3 | B 3 | B 2 | B 1 | B 0 |
    comm                                          | 3, 2   |  | 1, 0   |

A bucket is ready when the backward of its last layer ends; the link serves one bucket at a time. All ranks do the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from minipar import comm
from minipar.hardware import Cluster
from minipar.trace import COMM, COMPUTE, Span, Timeline


def bucketed(layer_bytes: Sequence[float], bucket_bytes: float) -> list[list[int]]:
    """The layers of each bucket, in the order in which they leave: from the last layer, a bucket closes when it is full."""
    buckets: list[list[int]] = [[]]
    for layer in reversed(range(len(layer_bytes))):
        buckets[-1].append(layer)
        if sum(layer_bytes[i] for i in buckets[-1]) >= bucket_bytes and layer:
            buckets.append([])
    return buckets


def timeline(
    forward: Sequence[float],
    backward: Sequence[float],
    layer_bytes: Sequence[float],
    bucket_bytes: float,
    ranks: int,
    hardware: Cluster,
) -> Timeline:
    """One step on ``ranks`` ranks: for each layer the seconds of its forward and backward, and the bytes of its gradient."""
    compute, ends, clock = [], {}, 0.0
    for layer, seconds in enumerate(forward):
        compute.append((f"F {layer}", clock, clock := clock + seconds))
    for layer in reversed(range(len(backward))):
        compute.append((f"B {layer}", clock, clock := clock + backward[layer]))
        ends[layer] = clock
    transfers, free = [], 0.0
    for layers in bucketed(layer_bytes, bucket_bytes):
        nbytes = sum(layer_bytes[i] for i in layers)
        start = max(free, max(ends[i] for i in layers))
        free = start + hardware.collective_seconds("all_reduce", nbytes, range(ranks))
        transfers.append((start, free, comm.wire_bytes("all_reduce", nbytes, ranks)))
    spans = [Span(r, COMPUTE, name, a, b) for r in range(ranks) for name, a, b in compute]
    if ranks > 1:
        spans += [Span(r, COMM, "all_reduce", a, b, "dp", sent, phase="backward") for r in range(ranks) for a, b, sent in transfers]
    return Timeline(spans, ranks, "predicted")

"""Layers to stages: the cut whose slowest stage is as fast as it can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate


def partition(costs: Sequence[float], stages: int) -> list[int]:
    """How many consecutive layers each stage gets, at least one, so that the costliest stage costs the least.

    costs: of one layer each, in any unit. Exact, by dynamic programming: the best cut of the first j layers into k stages ends
    with the best cut of some first i layers into k - 1. ``max`` over a falling and a rising curve: bisection finds i.
    """
    if stages < 1:
        raise ValueError(f"stages={stages}: at least one is needed")
    if stages > len(costs):
        raise ValueError(f"{len(costs)} layers do not fill {stages} stages: each stage needs a layer")
    for layer, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"the cost of layer {layer} is {cost}: a cost is a finite number, zero or more")
    total = list(accumulate(costs, initial=0.0))
    slowest = total[1:]  # slowest[j - 1]: of the best cut of the first j layers into k stages
    ends: list[list[int]] = []  # for k = 2, 3, ...: where the stage before the last one ends
    for k in range(2, stages + 1):
        ends.append([_last_cut(total, slowest, k, j) for j in range(k, len(costs) + 1)])
        slowest = [0.0] * (k - 1) + [max(slowest[i - 1], total[j] - total[i]) for j, i in enumerate(ends[-1], start=k)]
    return _sizes(ends, len(costs))


def _last_cut(total: list[float], slowest: list[float], k: int, j: int) -> int:
    """Where to start the k-th stage so that stages 1 to k cover the first j layers best."""
    low, high = k - 1, j - 1  # the first i at which the stages before are at least as slow as the last one lies in here
    while low < high:
        i = (low + high) // 2
        if slowest[i - 1] >= total[j] - total[i]:
            high = i
        else:
            low = i + 1
    candidates = (low - 1, low) if low > k - 1 else (low,)
    return min(candidates, key=lambda i: max(slowest[i - 1], total[j] - total[i]))


def _sizes(ends: list[list[int]], layers: int) -> list[int]:
    cuts = [layers]
    for k in range(len(ends) + 1, 1, -1):
        cuts.append(ends[k - 2][cuts[-1] - k])
    cuts.append(0)
    return [b - a for a, b in zip(cuts[:0:-1], cuts[-2::-1], strict=True)]

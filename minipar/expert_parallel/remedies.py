"""How evenly the experts are loaded, and what each remedy does about it on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minipar.expert_parallel.capacity import capacity, within_capacity
from minipar.expert_parallel.losses import adjusted_bias, balance_loss
from minipar.expert_parallel.options import MoEOptions
from minipar.expert_parallel.router import Router
from minipar.mesh import Axis

REMEDIES = ("none", "balance loss", "loss-free bias", "capacity")


@dataclass(frozen=True)
class Load:
    """The copies that each expert was sent in one step, and how many were dropped after that. Counted, not estimated."""

    counts: tuple[int, ...]  # by expert, before drops
    dropped: int = 0

    @property
    def max_over_mean(self) -> float:
        """1 when even, the number of experts at worst; the busiest expert's wait in units of the fair one."""
        total = sum(self.counts)
        return max(self.counts) * len(self.counts) / total if total else 1.0

    @property
    def variation(self) -> float:
        """The coefficient of variation: standard deviation over mean, 0 when even."""
        mean = sum(self.counts) / len(self.counts)
        return math.sqrt(sum((c - mean) ** 2 for c in self.counts) / len(self.counts)) / mean if mean else 0.0

    @property
    def entropy(self) -> float:
        """Of the experts' shares, over its largest value: 1 when even, 0 when one expert gets everything."""
        total = sum(self.counts)
        if not total or len(self.counts) == 1:
            return 1.0
        return -sum(c / total * math.log(c / total) for c in self.counts if c) / math.log(len(self.counts))

    @property
    def drop_share(self) -> float:
        total = sum(self.counts)
        return self.dropped / total if total else 0.0


@dataclass(frozen=True)
class Trace:
    """Tokens as they came to a MoE layer's router, step by step, and that router before the first of these steps."""

    tokens: list[Tensor]  # of each step, [T, width]
    weight: Tensor  # [experts, width]


def replay(trace: Trace, k: int, remedy: str, strength: float = 1.0, lr: float = 0.01) -> Iterator[Load]:
    """The recorded router over the recorded tokens, under one remedy; only the remedy changes anything.

    "none"            the router as it is
    "balance loss"    gradient steps (``lr``) on the balance loss times ``strength``
    "loss-free bias"  sigmoid scores and a bias moved by ``strength`` a step
    "capacity"        copies beyond ``strength`` times the fair share are dropped: the load stays as it is
    """
    if remedy not in REMEDIES:
        raise ValueError(f"remedy is one of {', '.join(REMEDIES)}, not {remedy!r}")
    experts, width = trace.weight.shape
    router = Router(width, experts, k, MoEOptions(router="sigmoid" if remedy == "loss-free bias" else "top-k"))
    router.weight.data = trace.weight.clone()
    for x in trace.tokens:
        routing = router(x)
        dropped = 0
        if remedy == "balance loss":
            (slope,) = torch.autograd.grad(strength * balance_loss(routing.probs, routing.counts, len(x)), [router.weight])
            router.weight.data.sub_(slope, alpha=lr)
        elif remedy == "loss-free bias":
            router.bias.copy_(adjusted_bias(router.bias, routing.counts, strength))
        elif remedy == "capacity":
            limit = capacity(len(x), experts, k, strength)
            dropped = int((~within_capacity(routing, limit, "position", Axis("rank", 1, 0, (0,)))).sum())
        yield Load(tuple(routing.counts.tolist()), dropped)

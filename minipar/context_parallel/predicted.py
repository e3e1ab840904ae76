"""When each rank computes, and when keys pass by: attention over a cut sequence as a predicted timeline.

    rank 0   | k0 |         waits for keys that a causal mask hides from it           plain ring, causal
    rank 1   | k1 |    k0    |
    rank 2   | k2 |    k1    |    k0    |
    rank 3   | k3 |    k2    |    k1    |    k0    |

A step of the ring lasts until its computation is done *and* the next keys are there. A rank's outgoing and incoming links each
serve one transfer at a time, as in ``minipar.pacing``.
"""

from __future__ import annotations

from minipar.context_parallel.layout import TokenLayout
from minipar.context_parallel.softmax import BACKWARD_FLOPS, FORWARD_FLOPS
from minipar.hardware import Cluster
from minipar.trace import COMM, COMPUTE, Span, Timeline


def timeline(layout: TokenLayout, seq: int, heads: int, head_dim: int, hardware: Cluster, causal: bool = True) -> Timeline:
    """Forward and backward of one attention over ``seq`` tokens in float32; every head has its own keys and values."""
    walk = _Walk(layout, seq, heads // layout.ulysses, head_dim, hardware, causal)
    tensor = 4.0 * heads * head_dim * seq / layout.ranks  # bytes of a rank's q, k, v or result
    walk.trade(3, tensor, "")
    walk.forward()
    walk.trade(1, tensor, "")
    walk.trade(1, tensor, "backward")
    walk.backward()
    walk.trade(3, tensor, "backward")
    return Timeline(walk.spans, layout.ranks, "predicted")


class _Walk:
    """All ranks go through their steps together; ``clock[rank]`` is where each one is."""

    def __init__(self, layout: TokenLayout, seq: int, heads: int, head_dim: int, hardware: Cluster, causal: bool) -> None:
        self.layout, self.hardware, self.ranks = layout, hardware, range(layout.ranks)
        self.flops = [[pairs * heads * head_dim for pairs in steps] for steps in layout.work(seq, causal)]
        self.kv_bytes = 2 * 4.0 * heads * head_dim * seq / layout.ring
        self.spans: list[Span] = []
        self.clock = [0.0] * layout.ranks
        self.out_free = [0.0] * layout.ranks
        self.in_free = [0.0] * layout.ranks

    def trade(self, times: int, nbytes: float, phase: str) -> None:
        """All-to-alls within the teams, one after the other, on ``nbytes`` of each rank."""
        team = self.layout.ulysses
        for _ in range(times if team > 1 else 0):
            leaving = nbytes * (team - 1) / team
            start = max(self.clock)
            end = start + self.hardware.collective_seconds("all_to_all", leaving, self.ranks)
            self.spans += [Span(rank, COMM, "all_to_all", start, end, "cp", leaving, phase=phase) for rank in self.ranks]
            self.clock = [end] * len(self.ranks)
            self.out_free, self.in_free = list(self.clock), list(self.clock)

    def forward(self) -> None:
        for step in range(self.layout.ring):
            keys = self._pass_on("") if step < self.layout.ring - 1 else None
            self._compute("F", step, FORWARD_FLOPS)
            if keys:
                self._arrive(keys, "")

    def backward(self) -> None:
        """Keys go round again, and their gradients follow one step behind."""
        gradients: list[float] | None = None
        for step in range(self.layout.ring):
            keys = self._pass_on("backward") if step < self.layout.ring - 1 else None
            self._compute("B", step, BACKWARD_FLOPS)
            if gradients:
                self._arrive(gradients, "backward")
            if step:
                gradients = self._pass_on("backward")
            if keys:
                self._arrive(keys, "backward")
        if gradients:
            self._arrive(gradients, "backward")

    def _compute(self, name: str, step: int, per_pair: int) -> None:
        for rank in self.ranks:
            if flops := per_pair * self.flops[rank][step]:
                start, self.clock[rank] = self.clock[rank], self.clock[rank] + self.hardware.device.seconds(flops)
                source = (rank // self.layout.ulysses - step) % self.layout.ring
                self.spans.append(Span(rank, COMPUTE, f"{name} k{source}", start, self.clock[rank]))

    def _neighbour(self, rank: int, hop: int) -> int:
        station, member = divmod(rank, self.layout.ulysses)
        return (station + hop) % self.layout.ring * self.layout.ulysses + member

    def _pass_on(self, phase: str) -> list[float]:
        """Hand keys and values, or their gradients, to the link; when each rank's transfer starts."""
        starts = []
        for rank in self.ranks:
            after = self._neighbour(rank, 1)
            start = max(self.clock[rank], self.out_free[rank])
            end = self.out_free[rank] = start + self.hardware.link((rank, after)).seconds(self.kv_bytes)
            self.spans.append(Span(rank, COMM, "send", start, end, "cp", self.kv_bytes, (after,), phase))
            starts.append(start)
        return starts

    def _arrive(self, starts: list[float], phase: str) -> None:
        """Wait until what the neighbour sent is here, and what this rank sent is gone."""
        for rank in self.ranks:
            before, after = self._neighbour(rank, -1), self._neighbour(rank, 1)
            start = max(starts[before], self.in_free[rank])
            end = self.in_free[rank] = start + self.hardware.link((before, rank)).seconds(self.kv_bytes)
            self.spans.append(Span(rank, COMM, "recv", start, end, "cp", 0, (before,), phase))
            gone = starts[rank] + self.hardware.link((rank, after)).seconds(self.kv_bytes)
            self.clock[rank] = max(self.clock[rank], end, gone)

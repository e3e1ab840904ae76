"""Which rank holds which expert, with replicas of the busy ones: pure functions from measured loads to a placement.

Experts are equally large but not equally busy, and the busiest rank sets the pace for all. The method is that of EPLB (DeepSeek,
2025), in three steps:

    1. groups of experts to nodes, so that tokens bound for one group stay inside a node      ``pack``
    2. within each node, further replicas for the experts with the most load per replica      ``replicate``
    3. the replicas to the ranks of the node                                                  ``pack``

With one node and one group this is the *global* method, which knows no nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minipar.expert_parallel.capacity import queue_positions


@dataclass(frozen=True)
class Placement:
    """The expert in each slot; rank r holds the slots from ``r * per_rank``, and every rank has equally many."""

    slots: tuple[int, ...]  # the expert in each slot
    ranks: int

    @property
    def per_rank(self) -> int:
        return len(self.slots) // self.ranks

    def on(self, rank: int) -> tuple[int, ...]:
        """The experts in the slots of ``rank``."""
        return self.slots[rank * self.per_rank : (rank + 1) * self.per_rank]

    @property
    def replicas(self) -> list[int]:
        """How many slots hold each expert."""
        return [self.slots.count(expert) for expert in range(max(self.slots) + 1)]

    def rank_loads(self, loads: Sequence[float]) -> list[float]:
        """The load of each rank when an expert's ``loads`` are shared evenly among its replicas."""
        per_slot = [loads[expert] / self.replicas[expert] for expert in self.slots]
        return [sum(per_slot[r * self.per_rank : (r + 1) * self.per_rank]) for r in range(self.ranks)]

    def imbalance(self, loads: Sequence[float]) -> float:
        """The busiest rank's load over the mean: how much longer than needed everyone waits."""
        by_rank = self.rank_loads(loads)
        return max(by_rank) * self.ranks / sum(by_rank) if any(by_rank) else 1.0

    def slot_of(self, expert: Tensor) -> Tensor:
        """``[copies]`` experts to the slot each copy goes to: an expert's copies take its replicas in turn."""
        table = [[slot for slot, held in enumerate(self.slots) if held == e] for e in range(max(self.slots) + 1)]
        width = max(map(len, table))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in table], device=expert.device)  # [E, most replicas]
        turn = queue_positions(expert, torch.zeros_like(expert)) % torch.tensor(self.replicas, device=expert.device)[expert]
        return padded[expert, turn]


def in_order(experts: int, ranks: int) -> Placement:
    """Experts in order of their number, without replicas: where training begins."""
    if experts % ranks:
        raise ValueError(f"{experts} experts do not divide over {ranks} ranks: give some of them replicas (place)")
    return Placement(tuple(range(experts)), ranks)


def place(loads: Sequence[float], slots: int, ranks: int, nodes: int = 1, groups: int = 1) -> Placement:
    """A placement of ``len(loads)`` experts in ``slots`` slots on ``ranks`` ranks of ``nodes`` nodes, by their measured ``loads``.

    ``groups`` is the number of expert groups of the model's router (they must divide over the nodes, or are left out of account).
    """
    experts = len(loads)
    if groups % nodes:
        nodes = groups = 1  # the global method
    _refuse_uneven(experts, slots, ranks, nodes, groups)
    size = experts // groups
    group_loads = [sum(loads[g * size : (g + 1) * size]) for g in range(groups)]
    order: list[int] = []
    for node_groups in pack(group_loads, nodes):
        members = [g * size + i for g in node_groups for i in range(size)]  # the node's experts
        held = [members[e] for e in replicate([loads[e] for e in members], slots // nodes)]
        per_replica = [loads[e] / held.count(e) for e in held]
        order += [held[slot] for rank in pack(per_replica, ranks // nodes) for slot in rank]
    return Placement(tuple(order), ranks)


def pack(loads: Sequence[float], packs: int) -> list[list[int]]:
    """Items into ``packs`` packs of equally many, as even in load as a greedy rule gets them: the heaviest first, each into the
    lightest pack with room."""
    room = len(loads) // packs
    filled: list[list[int]] = [[] for _ in range(packs)]
    weight = [0.0] * packs
    for item in sorted(range(len(loads)), key=lambda i: -loads[i]):
        pack = min((p for p in range(packs) if len(filled[p]) < room), key=lambda p: weight[p])
        filled[pack].append(item)
        weight[pack] += loads[item]
    return filled


def replicate(loads: Sequence[float], slots: int) -> list[int]:
    """The expert in each of ``slots`` slots: every expert once, then again and again the one with the most load per replica."""
    held = list(range(len(loads)))
    while len(held) < slots:
        held.append(max(range(len(loads)), key=lambda e: loads[e] / held.count(e)))
    return held


def _refuse_uneven(experts: int, slots: int, ranks: int, nodes: int, groups: int) -> None:
    if slots < experts:
        raise ValueError(f"{slots} slots cannot hold {experts} experts")
    for what, number, over, per in (
        ("slots", slots, ranks, "ranks"),
        ("ranks", ranks, nodes, "nodes"),
        ("experts", experts, groups, "groups"),
    ):
        if number % over:
            raise ValueError(f"{number} {what} do not divide over {over} {per}")

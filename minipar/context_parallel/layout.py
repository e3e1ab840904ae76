"""Which tokens lie on which rank, and which pairs of pieces a causal mask leaves to compute.

A causal mask gives late tokens more to do than early ones. Four ranks, each row one rank's queries, against all keys:

    ring (in order)                     zigzag (chunk r and the r-th from the end)
    rank 0  #                           rank 0  #                and  # # # # # # # #
    rank 1  # #                         rank 1  # #              and  # # # # # # #
    rank 2  # # #                       rank 2  # # #            and  # # # # # #
    rank 3  # # # #                     rank 3  # # # #          and  # # # # #

In order, the ring waits for its busiest rank, n blocks of work, while the mean is (n + 1) / 2. In zigzag (Llama 3, 2024;
zhuzilin's ring-flash-attention) every rank has the same work, at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import torch
from torch import Tensor

from minipar.choices import METHODS


@dataclass(frozen=True)
class TokenLayout:
    """A sequence laid out over ``ranks``: a ring of teams, each of ``ulysses`` neighbours that split heads (see ulysses.py)."""

    ranks: int
    zigzag: bool = True
    ulysses: int = 1

    def __post_init__(self) -> None:
        if self.ulysses < 1 or self.ranks % self.ulysses:
            raise ValueError(f"teams of {self.ulysses} ranks do not divide the {self.ranks} ranks of the axis")

    @staticmethod
    def of(method: str, ranks: int, ulysses: int = 1) -> TokenLayout:
        """The layout of a named method; ``ulysses`` > 1 makes "ring" or "zigzag" a ring of teams."""
        if method not in METHODS:
            raise ValueError(f"method is one of {', '.join(METHODS)}, not {method!r}")
        return TokenLayout(ranks, method == "zigzag", ranks if method == "ulysses" else ulysses)

    @property
    def ring(self) -> int:
        """Stations of the ring."""
        return self.ranks // self.ulysses

    @property
    def multiple(self) -> int:
        """Sequences must be a multiple of this many tokens."""
        return lcm(self.ring * (2 if self.zigzag else 1), self.ranks)

    def chunks(self, station: int) -> tuple[int, ...]:
        """The chunks of the sequence that lie at one station, in local order."""
        return (station, 2 * self.ring - 1 - station) if self.zigzag else (station,)

    def positions(self, seq: int, rank: int) -> Tensor:
        """The places in the whole sequence of this rank's tokens, ``[seq / ranks]``."""
        self.refuse(seq)
        pieces = torch.arange(seq).chunk(self.ring * (2 if self.zigzag else 1))
        station, member = divmod(rank, self.ulysses)
        return torch.cat([pieces[chunk] for chunk in self.chunks(station)]).chunk(self.ulysses)[member]

    def refuse(self, seq: int) -> None:
        if seq % self.multiple:
            missing = -seq % self.multiple
            raise ValueError(
                f"{seq} tokens do not cut into equal parts over {self.ranks} ranks: this layout needs a multiple of "
                f"{self.multiple}; context_parallel.pad(batch, {self.multiple}) adds {missing} that count for nothing"
            )

    def pairs(self, station: int, source: int, causal: bool = True) -> list[tuple[int, int, bool]]:
        """What the queries of ``station`` compute against the keys of ``source``: ``(query chunk, key chunk, masked)``.

        The chunks are local, 0 or 1. Keys of an earlier chunk are seen in full, of the same chunk under the mask, of a later
        one not at all.
        """
        found = []
        for i, query in enumerate(self.chunks(station)):
            for j, key in enumerate(self.chunks(source)):
                if not causal or key <= query:
                    found.append((i, j, causal and key == query))
        return found

    def work(self, seq: int, causal: bool = True) -> list[list[int]]:
        """Per rank and step of the ring, the query-key pairs that it computes for each of its heads."""
        self.refuse(seq)
        steps = [[self.work_at(seq, station, step, causal) for step in range(self.ring)] for station in range(self.ring)]
        return [steps[rank // self.ulysses] for rank in range(self.ranks)]

    def work_at(self, seq: int, station: int, step: int, causal: bool = True) -> int:
        """The query-key pairs of one station at one step of the ring."""
        size = seq // (self.ring * (2 if self.zigzag else 1))
        cost = {False: size * size, True: size * (size + 1) // 2}
        return sum(cost[masked] for *_, masked in self.pairs(station, (station - step) % self.ring, causal))

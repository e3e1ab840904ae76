"""Real text without a download: the Python standard library's own documentation and sources, one token a byte.

Every split of the work is cut from the same global batch: ``batch(step, rows, seq)`` depends on nothing else.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from minipar.checks import not_whole, refuse
from minipar.mesh import Axis

IGNORE = -100  # a target that does not count
CORPUS_BYTES = 4_000_000
HELD_OUT = 0.1  # the share at the end of the text that is never trained on


@dataclass(frozen=True)
class Batch:
    """Token sequences and, for each token, the one that follows it."""

    inputs: Tensor  # [rows, seq], int64
    targets: Tensor  # [rows, seq], int64; IGNORE where it does not count
    total: int  # targets that count in the GLOBAL batch: what every part divides its loss by
    positions: Tensor | None = None  # [seq], where the sequence is cut; None: 0, 1, 2, ...

    @property
    def tokens(self) -> int:
        """Targets that count in this part."""
        return int((self.targets != IGNORE).sum())

    def rows_of(self, axis: Axis) -> Batch:
        """This rank's rows. Rows that do not divide go to the first ranks, so parts may differ by one row or be empty."""
        return self.parts(axis.size)[axis.rank]

    def parts(self, count: int) -> list[Batch]:
        """The rows in ``count`` parts, such as microbatches, in order."""
        inputs, targets = self.inputs.tensor_split(count), self.targets.tensor_split(count)
        return [replace(self, inputs=x, targets=y) for x, y in zip(inputs, targets, strict=True)]

    def to(self, device: torch.device | str) -> Batch:
        positions = None if self.positions is None else self.positions.to(device)
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device), positions=positions)


@lru_cache(maxsize=1)
def corpus() -> bytes:
    """The text: Python's help topics, then standard library sources in order of their names, about four million bytes."""
    from pydoc_data.topics import topics

    text = bytearray(b"\n\n".join(topics[name].encode() for name in sorted(topics)))  # grows in place: bytes would be copied
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if len(text) >= CORPUS_BYTES:
            break
        text += b"\n\n" + path.read_bytes()
    return bytes(text[:CORPUS_BYTES])


def corpus_sha256() -> str:
    """Tells two Python versions' texts apart: losses compare only where this is equal."""
    return hashlib.sha256(corpus()).hexdigest()


@lru_cache(maxsize=1)
def _tokens() -> Tensor:
    return torch.frombuffer(bytearray(corpus()), dtype=torch.uint8)  # [bytes]


def batch(step: int, rows: int, seq: int, split: str = "train", ragged: bool = False) -> Batch:
    """The global batch of one step: ``rows`` sequences of ``seq`` tokens from random places in the text, the same everywhere.

    ``ragged`` masks a different number of targets in each row (the first row keeps one), as texts of unequal length would.
    """
    refuse(not_whole("step", step, 0))
    if rows < 1 or seq < 1:
        raise ValueError(f"a batch needs at least one row and one token, not {rows} rows of {seq}")
    text = _split(split)
    if seq + 1 > len(text):
        raise ValueError(f"sequences of {seq} tokens are longer than the {split} text ({len(text)} tokens)")
    generator = torch.Generator().manual_seed(step * 2 + (split == "train"))
    starts = torch.randint(len(text) - seq, (rows, 1), generator=generator)  # [rows, 1]
    window = text[starts + torch.arange(seq + 1)].long()  # [rows, seq + 1]
    inputs, targets = window[:, :-1].contiguous(), window[:, 1:].clone()
    if ragged:
        lengths = torch.randint(1, seq + 1, (rows, 1), generator=generator)
        lengths[0] = 1
        targets[torch.arange(seq) >= lengths] = IGNORE
    return Batch(inputs, targets, total=int((targets != IGNORE).sum()))


def _split(split: str) -> Tensor:
    if split not in ("train", "held-out"):
        raise ValueError(f"split is 'train' or 'held-out', not {split!r}")
    tokens = _tokens()
    cut = int(len(tokens) * (1 - HELD_OUT))
    return tokens[:cut] if split == "train" else tokens[cut:]

"""Findings that several exercises share, each as a sentence: a value that is off, and by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course.exercises.exercise import Seen

TOLERANCE = 1e-9  # relative, in float64: only a mistake makes a larger difference


def no_tensor(values: Sequence[Any], like: Tensor) -> str | None:
    """A rank that returned no tensor, or one of another shape or dtype than ``like``."""
    for rank, value in enumerate(values):
        if value is None:
            return f"rank {rank} returned None: does every path of your function end in a return?"
        if not isinstance(value, Tensor):
            return f"rank {rank} returned {type(value).__name__}, not a tensor."
        if value.shape != like.shape:
            return f"rank {rank} returned shape {list(value.shape)}; {list(like.shape)} was expected."
        if value.dtype != like.dtype:
            return f"rank {rank} returned {value.dtype}; the input was {like.dtype}."
    return None


def equal(got: Tensor, expected: Tensor) -> bool:
    """Equal but for rounding, on the scale of the expected tensor."""
    scale = expected.abs().max().clamp_min(1e-30)
    return bool(((got - expected).abs().max() <= TOLERANCE * scale).item())


def wrong_value(
    values: Sequence[Tensor], expected: Tensor | Sequence[Tensor], what: str, suspects: Mapping[str, Sequence[Tensor]]
) -> str | None:
    """The first rank whose value is off, with the suspect that explains all that are.

    ``expected`` is the same for all ranks, or one for each. ``suspects`` maps what to say to the values, by rank, that a known
    mistake would give.
    """
    wanted = [expected] * len(values) if isinstance(expected, Tensor) else expected
    off = [rank for rank, value in enumerate(values) if not equal(value, wanted[rank])]
    if not off:
        return None
    for cause, wrong in suspects.items():
        if all(equal(values[rank], wrong[rank]) for rank in off):
            return f"rank {off[0]}: {cause}"
    return f"rank {off[0]}: {what} is off by {_times(values[off[0]], wanted[off[0]])}"


def _times(got: Tensor, expected: Tensor) -> str:
    """How ``got`` differs: by a factor, or where."""
    ratio = float((got * expected).sum() / expected.pow(2).sum())
    if torch.isfinite(got).all() and equal(got, ratio * expected) and ratio:
        return f"a factor of {ratio:.4g} everywhere: a sum taken twice, or a division too many or too few?"
    bad = (got - expected).abs() > TOLERANCE * expected.abs().max()
    first = int(bad.flatten().nonzero()[0])
    return f"{(got - expected).flatten()[first]:+.3g} at element {first} ({int(bad.sum())} of {bad.numel()} elements differ)."


def changed_input(seen: Seen, flags: Sequence[bool], name: str = "x") -> str | None:
    """A rank on which the answer wrote into its input."""
    rank = next((rank for rank, changed in enumerate(flags) if changed), None)
    return None if rank is None else f"rank {rank}: your function overwrote its input {name}, which its caller still needs."

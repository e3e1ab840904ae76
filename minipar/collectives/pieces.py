"""A tensor as a row of elements, and a row cut into pieces that may differ by one element."""

from __future__ import annotations

import torch


def flat(x: torch.Tensor) -> torch.Tensor:
    """``x`` as ``[elements]`` of the same memory: what is written to the one shows in the other."""
    if x.requires_grad:
        raise ValueError("this collective overwrites its tensor, and autograd still needs that one: detach or copy it first")
    if not x.is_contiguous():
        raise ValueError("this collective overwrites its tensor, so it must be contiguous: pass x.contiguous() and keep the result")
    return x.view(-1)


def cut(row: torch.Tensor, count: int) -> list[torch.Tensor]:
    """``row`` in ``count`` pieces along its first dimension; where it does not divide, the first ones hold one element more.

    Pieces may be empty. Every rank cuts alike, so no rank has to tell another how long its piece is.
    """
    return list(row.tensor_split(count)) if count > 1 else [row]


def add(target: torch.Tensor, arrived: torch.Tensor) -> None:
    """``target += arrived``; True and False add up as "or"."""
    if target.dtype == torch.bool:
        target.logical_or_(arrived)
    else:
        target.add_(arrived)

"""Put a GPT, and the batches that it reads, on the ranks of a context-parallel axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipar.context_parallel.attention import ContextAttention
from minipar.context_parallel.layout import TokenLayout
from minipar.context_parallel.ulysses import refuse_heads
from minipar.data import IGNORE, Batch
from minipar.mesh import Axis
from minipar.model import GPT


def parallelize(model: GPT, axis: Axis, method: str = "zigzag", ulysses: int = 1) -> GPT:
    """Let every layer attend over the whole sequence while this rank holds ``seq / cp`` tokens; in place, returns ``model``.

    ``method`` is "ring", "zigzag" or "ulysses"; ``ulysses`` > 1 makes the first two a ring of teams of that many ranks. Only
    attention looks at other tokens, so nothing else changes, and all parameters stay whole; gradients are summed over the axis.
    Give the model batches from ``cut``, with the same method.
    """
    layout = TokenLayout.of(method, axis.size, ulysses)
    if axis.size == 1:
        return model
    for block in model.blocks:
        attention: Any = block.attention
        refuse_heads(attention.q.weight.shape[0] // attention.head_dim, layout.ulysses)
        attention.core = ContextAttention(axis, layout)
    model.register_forward_pre_hook(_refuse_uncut)
    return model


def cut(batch: Batch, axis: Axis, method: str = "zigzag", ulysses: int = 1) -> Batch:
    """This rank's tokens of every row: ``[rows, seq]`` to ``[rows, seq / cp]``, with their positions and the same global total."""
    layout = TokenLayout.of(method, axis.size, ulysses)
    if axis.size == 1:
        return batch
    own = layout.positions(batch.inputs.shape[1], axis.rank).to(batch.inputs.device)
    return replace(batch, inputs=batch.inputs[:, own], targets=batch.targets[:, own], positions=_positions(batch)[own])


def pad(batch: Batch, multiple: int) -> Batch:
    """Sequences made a multiple of ``multiple`` tokens long, by tokens at the end whose targets do not count.

    Nothing changes for the others under a causal mask, since nobody looks ahead. (Experts would see them: there, choose a length
    that divides.)
    """
    extra = -batch.inputs.shape[1] % multiple
    positions = _positions(batch)
    return replace(
        batch,
        inputs=F.pad(batch.inputs, (0, extra)),
        targets=F.pad(batch.targets, (0, extra), value=IGNORE),
        positions=torch.cat([positions, positions[-1:].expand(extra)]),  # any that the model knows
    )


def _positions(batch: Batch) -> Tensor:
    if batch.positions is not None:
        return batch.positions
    return torch.arange(batch.inputs.shape[1], device=batch.inputs.device)


def _refuse_uncut(module: nn.Module, args: tuple[Any, ...]) -> None:
    if len(args) < 2 or args[1] is None:
        raise ValueError(
            "this model reads a part of each sequence and must know its positions: give it context_parallel.cut(batch, ...)"
        )

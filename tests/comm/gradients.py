"""Check a communication's gradient by moving single numbers on single ranks and watching the one global loss."""

from collections.abc import Callable

import torch

from minipar.comm import twins
from minipar.mesh import Axis

STEP = 1e-5


def error(op: Callable[[torch.Tensor], torch.Tensor], axis: Axis, shape: tuple[int, ...], kind: str, used: str) -> float:
    """The largest difference between the gradient of ``op``'s input and the slope of the loss, over the elements.

    ``kind`` is "replicated" (the same input on all ranks: they move together) or "own" (each its own: one moves at a time).
    ``used`` is "alike" (every rank computes the same loss from the output) or "apart" (each rank computes a part of the loss).
    """
    x = _random(shape, 0 if kind == "replicated" else axis.rank)

    def loss(x: torch.Tensor) -> torch.Tensor:
        out = op(x)
        weight = _random(tuple(out.shape), 100 if used == "alike" else 100 + axis.rank)
        part = (weight * out**3).sum()
        return part if used == "alike" else twins.reduce(part, axis)

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    assert leaf.grad is not None
    movers = [None] if kind == "replicated" else list(range(axis.size))  # None: all at once
    worst = 0.0
    for mover in movers:
        for i in range(_most_elements(shape)):
            moves = mover is None or mover == axis.rank
            slope = (_moved(loss, x, i, STEP * moves) - _moved(loss, x, i, -STEP * moves)) / (2 * STEP)
            if moves:
                worst = max(worst, abs(slope - leaf.grad.view(-1)[i].item()))
    return worst


def _moved(loss: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, i: int, by: float) -> float:
    y = x.clone()
    y.view(-1)[i] += by
    with torch.no_grad():
        return loss(y).item()


def _most_elements(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _random(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

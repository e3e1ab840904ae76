"""From gradients to new weights: the optimizer, its learning rate, and the clip that keeps one bad batch from doing harm.

Every rank updates the parameters it holds. The only thing they must agree on is the norm of the *whole* gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from minipar.choices import OPTIMIZERS
from minipar.mesh import Mesh
from minipar.parameters import grad_norm


def build(name: str, model: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) or plain SGD. Matrices decay; norms and biases, which have one dimension, do not."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer is one of {', '.join(OPTIMIZERS)}, not {name!r}")
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=lr) if name == "adamw" else torch.optim.SGD(groups, lr=lr)


def learning_rate(step: int, steps: int, peak: float, warmup: int = 0, final: float = 1.0) -> float:
    """The rate of ``step`` of ``steps``: up in a line over ``warmup`` steps, then down half a cosine to ``final * peak``.

    A function of the step alone, so a resumed run has nothing to remember.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - 1 - warmup)  # 0 right after the warm-up, 1 at the last step
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def moved_numbers(states: int) -> int:
    """Numbers read or written for each parameter in an update: itself twice, its gradient, and each of its states twice."""
    return 3 + 2 * states


def moved_bytes(optimizer: torch.optim.Optimizer) -> float:
    """Bytes that one update moves through memory, which is what it takes time for."""
    states = 2 if "betas" in optimizer.defaults else int(optimizer.defaults.get("momentum", 0) > 0)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return float(moved_numbers(states) * sum(p.numel() * p.element_size() for p in params))


def clip(params: Iterable[nn.Parameter], mesh: Mesh, limit: float) -> None:
    """Scale all gradients alike where their global norm is above ``limit``; the norm is the same on every rank of ``mesh``."""
    params = list(params)
    scale = (limit / grad_norm(params, mesh)).clamp(max=1.0)
    torch._foreach_mul_([p.grad for p in params if p.grad is not None], scale.item())

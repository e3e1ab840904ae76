"""Optimizers that do not import torch's compiler, where nobody compiles.

``torch.optim`` tells the compiler to leave its functions alone, and imports all of it for that when they are first called: two
seconds of work on every new rank. Until somebody else has imported the compiler there is nobody to tell.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

COMPILER = "torch._dynamo"


def install() -> None:
    """Once per fork server. Where a torch is made otherwise than expected, its functions stay as they are."""
    _leave_alone(torch.optim.Optimizer.add_param_group)
    for kind in below(torch.optim.Optimizer):
        step = vars(kind).get("step")
        if isinstance(step, FunctionType) and step.__code__.co_name == "_use_grad":
            kind.step = _step(step, step.__wrapped__)  # type: ignore[attr-defined]


def _leave_alone(example: Any) -> None:
    """All functions that torch keeps from its compiler as it does ``example`` ask first whether there is one."""
    if example.__code__.co_name != "inner":
        return
    for kept in [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__ is example.__code__]:
        plain = kept.__wrapped__  # type: ignore[attr-defined]
        if not hasattr(plain, "__dynamo_disable"):
            plain.__dynamo_disable = _disabled(plain)  # where torch looks before it imports the compiler


def _disabled(plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return plain(*args, **kwargs)
        if not told:
            told.append(sys.modules[COMPILER].disable(plain, wrapping=False))
        return told[0](*args, **kwargs)

    told: list[Callable[..., Any]] = []
    return call


def _step(whole: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """``step`` of an optimizer, without gradients unless it is to be differentiated."""

    @functools.wraps(plain)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if COMPILER in sys.modules:
            return whole(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return step


def below(kind: type) -> list[type]:
    """All classes that inherit from ``kind``."""
    children: list[type] = kind.__subclasses__()
    return [one for child in children for one in (child, *below(child))]

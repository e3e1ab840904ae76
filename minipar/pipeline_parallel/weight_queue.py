"""Split backward: the input gradient now, the weight gradients of the linear layers later.

A linear layer's backward is two matrix products that need nothing from each other. The stage before waits for one of them:

    grad_input  = grad_output @ weight         done in backward, as always
    grad_weight = grad_output.T @ input        put into a queue, and done when its time has come

(Qi et al. 2023, section 2.) Nothing of autograd is taken apart: within ``deferring(queue)`` each ``F.linear`` on a parameter, in
whatever module, is replaced by one whose backward knows the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class WeightQueue:
    """The weight gradients put off, in lists of one microbatch each. Input and output gradient stay in memory until then."""

    def __init__(self) -> None:
        self._open: list[Callable[[], None]] | None = None
        self._waiting: dict[object, list[Callable[[], None]]] = {}

    @contextmanager
    def collect(self, key: object) -> Iterator[None]:
        """Backward passes in here leave their weight gradients in the queue, under ``key``."""
        self._open = self._waiting[key] = []
        try:
            yield
        finally:
            self._open = None

    def put(self, work: Callable[[], None]) -> bool:
        """Queue ``work`` if weight gradients are being put off now; False: do it yourself."""
        if self._open is None:
            return False
        self._open.append(work)
        return True

    def run(self, key: object) -> None:
        """Compute the weight gradients left under ``key``, and free what they held."""
        with torch.no_grad():
            for work in self._waiting.pop(key):
                work()

    def __len__(self) -> int:
        return len(self._waiting)


class deferring(TorchFunctionMode):  # noqa: N801 - used like a function: with deferring(queue)
    """Forward passes in here use linear layers whose weight gradient can be put off."""

    def __init__(self, queue: WeightQueue) -> None:
        super().__init__()
        self.queue = queue

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is F.linear and torch.is_grad_enabled():
            x, weight, bias = _arguments(*args, **(kwargs or {}))
            if weight.requires_grad and weight.is_leaf and (bias is None or bias.is_leaf):
                return _DeferredLinear.apply(x, weight, bias, self.queue)
        return func(*args, **(kwargs or {}))


def _arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


class _DeferredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, queue: WeightQueue) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.queue = weight, bias, queue  # the parameters themselves: their grad is added to later
        ctx.version = weight._version
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x,), weight, bias = ctx.saved_tensors, ctx.weight, ctx.bias
        if weight._version != ctx.version:
            raise RuntimeError("a weight was changed between the forward and the backward of a microbatch")
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None

        def products() -> tuple[Tensor, Tensor | None]:
            rows = grad.flatten(0, -2)  # [tokens, out]
            return rows.T @ x.flatten(0, -2), None if bias is None else rows.sum(0)

        def later() -> None:
            for parameter, gradient in zip((weight, bias), products(), strict=True):
                _accumulate(parameter, gradient)

        if ctx.queue.put(later):
            return grad_x, None, None, None
        return grad_x, *products(), None


def _accumulate(parameter: Tensor | None, gradient: Tensor | None) -> None:
    """As autograd would: also whoever waits for a gradient of ``parameter`` is told."""
    if parameter is None or gradient is None or not parameter.requires_grad:
        return
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        hook(parameter)

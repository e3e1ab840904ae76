"""Pacing at the grain of matrix products: each lasts as long as on the modelled device, forward and backward.

``pacing.compute`` around a whole stage cannot tell what is computed before a message from what is computed beside it. Here every
product waits for itself, wherever it stands: so a collective in the middle of a layer starts when its input is there, and one
that travels beside a product is hidden by it, as on real hardware. What is no product takes no modelled time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minipar import pacing
from minipar.hardware import Cluster, Device, cluster

aten = torch.ops.aten


def _mm(a: Tensor, b: Tensor) -> float:
    return 2.0 * a.shape[-2] * a.shape[-1] * b.shape[-1] * (a.shape[0] if a.dim() == 3 else 1)


def _attention(q: Tensor, k: Tensor, products: float) -> float:
    """A fused causal kernel: half of the pairs; forward makes 2 products of them, backward 5 (two are done again)."""
    return products * q.numel() * k.shape[-2]


FLOPS: dict[Any, Callable[..., float]] = {
    **dict.fromkeys((aten.mm.default, aten.mm.out, aten.bmm.default, aten.bmm.out), lambda a, b, *_, **__: _mm(a, b)),
    **dict.fromkeys((aten.addmm.default, aten.addmm_.default), lambda _, a, b, *__, **___: _mm(a, b)),
    aten._scaled_dot_product_flash_attention_for_cpu.default: lambda q, k, *_, **__: _attention(q, k, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: lambda _, q, k, *__, **___: _attention(q, k, 5),
}


class Products(TorchDispatchMode):
    """Sees every matrix product of this thread, and computes it within ``around``."""

    def around(self, flops: float) -> AbstractContextManager[Any]:
        """What to do about one product of ``flops``."""
        raise NotImplementedError

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to be skipped would import the compiler: seconds on every rank

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flops = FLOPS.get(func)
        if flops is None:
            return func(*args, **(kwargs or {}))
        with self.around(flops(*args, **(kwargs or {}))):
            return func(*args, **(kwargs or {}))


class PacedProducts(Products):
    """Inside, every matrix product lasts as long as on ``device``."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def around(self, flops: float) -> AbstractContextManager[Any]:
        return pacing.compute(seconds=self.device.seconds(flops))


@contextmanager
def paced_products(hardware: str | Cluster | None, rank: int = 0) -> Iterator[None]:
    """In here this rank (global) is paced as ``hardware``, product by product; None: not at all. Then as it was before."""
    if hardware is None:
        yield
        return
    where, before = cluster(hardware), pacing.current()
    at_once = replace(where.device, peak_flops=float("inf"), memory_bandwidth=float("inf"))  # whole actions add nothing to products
    pacing.pace(replace(where, device=at_once), rank)
    try:
        with PacedProducts(where.device_of(rank)):
            yield
    finally:
        pacing.pace(None if before is None else before.cluster, rank)

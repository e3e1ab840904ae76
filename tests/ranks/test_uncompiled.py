"""A rank's first optimizer does not load torch's compiler; where somebody has loaded it, everything is as torch made it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch

COMPILER = "torch._dynamo"
KINDS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "Adam": {"fused": True}, "AdamW": {}}


def trained(kind: str, **options: Any) -> list[torch.Tensor]:
    """Parameters after three steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert torch.is_grad_enabled()
    return [p.detach() for p in model.parameters()]


def everything() -> tuple[bool, list[list[torch.Tensor]]]:
    return COMPILER in sys.modules, [trained(kind, **options) for kind, options in KINDS.items()]


def without_and_with() -> list[tuple[bool, list[list[torch.Tensor]]]]:
    first, second = everything(), everything()
    import_module(COMPILER)
    return [first, second, everything()]


def test_optimizers_step_as_ever_and_load_no_compiler(ranks):
    [(first, second, as_torch_does)] = ranks(1).run(without_and_with)
    assert [loaded for loaded, _ in (first, second, as_torch_does)] == [False, False, True]
    for _, found in (first, second):
        for mine, torchs in zip(found, as_torch_does[1], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, torchs, strict=True))


def test_every_optimizer_of_torch_is_covered(ranks):
    def others() -> list[str]:
        from course.ranks.uncompiled import below

        steps = {kind.__name__: vars(kind).get("step") for kind in below(torch.optim.Optimizer)}
        return [name for name, step in steps.items() if step is not None and step.__code__.co_name == "_use_grad"]

    assert ranks(1).run(others) == [[]]

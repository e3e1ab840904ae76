"""What the ranks of the blend lab do: one training step, split in any way. Like ``work.py``, it must not import views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from course.exercises.peak import PeakBytes
from course.labs.work_pipeline import unseen
from minipar import GPT, Mesh, blend, comm, data, pacing
from minipar.expert_parallel.layer import end_step, routed
from minipar.hardware import Cluster
from minipar.model_time import model_time
from minipar.planner.job import Job
from minipar.planner.memory import Memory
from minipar.trace import Span, now, tracer


class Seen(NamedTuple):
    """What one rank showed."""

    spans: list[Span]  # of one step
    memory: Memory  # bytes of live tensors, counted
    loss: float
    seconds: float  # of that step, until this rank was done, in the modelled hardware's time
    wall: float  # the same by this machine's clock
    routed: list[int]  # copies that this rank sent to each expert, all layers and microbatches together: counted


def blend_step(job: Job, hardware: Cluster | None = None, wait: bool = False) -> Seen:
    """On each rank: build the layout, and run one step paced product by product, its live tensors counted.

    ``hardware``: left out, that which the rank is paced by. ``wait``: the step lasts as long as it does there.
    """
    pacer, batch = pacing.current(), data.batch(0, job.rows, job.config.seq)
    where = pacer.cluster if hardware is None and pacer is not None else hardware
    if where is None:
        raise ValueError("blend_step needs hardware to be paced by")
    with unseen():
        layout = blend.build(job.config, Mesh(**job.mesh), GPT(job.config), **job.options)
        params = list(layout.model.parameters())
        if job.pp > 1:
            layout.evaluate(batch)  # the first time, stages also tell each other what form their messages have
        for _ in range(2 if wait else 0):  # in the modelled hardware's time it does not matter that first steps take longer
            layout.step(batch)
            end_step(layout.model)
            _clear(params)
    comm.barrier()
    began = now()
    with model_time(where, comm.world().rank, wait) as clock, tracer.watch() as spans, _held_by_forwards(layout) as held:
        loss = layout.step(batch)
    memory = Memory(_bytes(params), _bytes([p.grad for p in params]), _bytes(adamw_step(params)), max(held))
    return Seen(list(spans), memory, loss.item(), clock.time, now() - began, routed(layout.model))


@contextmanager
def _held_by_forwards(layout: blend.Blend) -> Iterator[list[int]]:
    """Counts, whenever a forward ends, the bytes that forwards have left for their backwards; gradients are not among them."""
    alive, found = PeakBytes(), [0]

    def count() -> None:
        gradients = _bytes([p.grad for p in layout.model.parameters()])
        found.append(alive.now - gradients)

    with _after_each_forward(layout, count), alive:
        yield found


@contextmanager
def _after_each_forward(layout: blend.Blend, count: Callable[[], None]) -> Iterator[None]:
    """In here ``count`` is called whenever a stage, or the whole model, has ended a forward."""
    engine = layout.engine
    owners: list[tuple[Any, str]] = (
        [(stage, "forward") for stage in engine.pipeline.stages.values()]
        if isinstance(engine, blend.Staged)
        else [(engine.model, "loss")]
    )
    for owner, name in owners:
        setattr(owner, name, _then(getattr(owner, name), count))
    try:
        yield
    finally:
        for owner, name in owners:
            delattr(owner, name)


def _then(call: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        out = call(*args)
        count()
        return out

    return counted


def adamw_step(params: Sequence[nn.Parameter], lr: float = 1e-3) -> list[torch.Tensor]:
    """One first step of AdamW on ``params``; returns the state that it would keep for the next.

    (``torch.optim.AdamW`` does the same, but imports torch's compiler before: seconds on every new rank.)
    """
    held = [p for p in params if p.grad is not None]
    first, second = ([torch.zeros_like(p) for p in held] for _ in range(2))
    counts = [torch.ones(()) for _ in held]
    options: Any = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}
    tensors: Any = (held, [p.grad for p in held], first, second, [], counts)
    with torch.no_grad():
        torch._fused_adamw_(*tensors, lr=lr, **options)
    return [*first, *second, *counts]


def _clear(params: Sequence[nn.Parameter]) -> None:
    for p in params:
        p.grad = None


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor | nn.Parameter))

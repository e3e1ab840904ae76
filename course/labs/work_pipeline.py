"""What the ranks of the pipeline lab do. Like ``work.py``, it must not import views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from minipar import Mesh, comm, pacing
from minipar.data import Batch
from minipar.pipeline_parallel import Schedule
from minipar.pipeline_parallel.run import Pipeline
from minipar.pipeline_parallel.simulate import Cost
from minipar.trace import COMM, Timeline, tracer

WIDTH = 16  # of the small layer that stands for a stage: it really computes, then waits as long as the stage should take


def pipeline_step(schedule: Schedule, pace: dict[str, Cost]) -> tuple[Timeline, int, int]:
    """On each rank: forward and backward of one batch by ``schedule``, actions lasting ``pace`` seconds.

    Returns the timeline of all ranks; this rank's most microbatch-chunks held at once, and messages sent.
    """
    torch.manual_seed(0)
    mesh = Mesh(pp=schedule.ranks)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(schedule.stages)))
    x = torch.randn(schedule.microbatches, WIDTH)
    batch = Batch(x, x, total=schedule.microbatches)
    options: dict[str, Any] = {"sizes": [1] * schedule.stages, "loss_sum": squares}
    with unseen():  # the first step of a process takes longer
        first = Pipeline(model, schedule, mesh, **options)
        first.accumulate(batch)
    pipe = Pipeline(model, schedule, mesh, pace=pace, **options)
    pipe.mail.remember(first.mail)
    comm.barrier(mesh["pp"])
    pipe.accumulate(batch)
    timeline = pipe.timeline()
    sent = sum(s.name == "send" for s in timeline.of(mesh["pp"].rank, COMM))
    return timeline, pipe.peak_activations, sent


@contextmanager
def unseen() -> Iterator[None]:
    """In here nothing is traced, and nothing is paced."""
    pacer = pacing.current()
    comm.pace(None)
    tracer.enabled = False
    try:
        yield
    finally:
        tracer.enabled = True
        if pacer is not None:
            comm.pace(pacer.cluster, pacer.rank)


def squares(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores - targets).pow(2).sum()

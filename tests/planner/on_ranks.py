"""What ranks do for the tests of predictions: a step of every job, paced in model time or as fast as it goes."""

from __future__ import annotations

from collections import Counter

from course.labs.work_blend import Seen, blend_step
from minipar import GPT, Mesh, blend, data
from minipar.expert_parallel.layer import routed
from minipar.hardware import Cluster
from minipar.planner.job import Job
from minipar.trace import COMM, tracer


def steps(jobs: list[tuple[Job, Cluster]]) -> list[Seen]:
    return [blend_step(job, hardware) for job, hardware in jobs]


def sent(job: Job) -> tuple[dict[str, float], list[int]]:
    """On each rank: the bytes that a step sends by axis, and the copies that it routes to each expert. Counted."""
    layout = blend.build(job.config, Mesh(**job.mesh), GPT(job.config), **job.options)
    with tracer.watch() as spans:
        layout.step(data.batch(0, job.rows, job.config.seq))
    total: Counter[str] = Counter()
    for span in spans:
        if span.lane == COMM and span.nbytes:
            total[span.axis] += span.nbytes  # type: ignore[assignment]
    return dict(total), routed(layout.model)


def sent_by_each(some: list[Job]) -> list[tuple[dict[str, float], list[int]]]:
    return [sent(job) for job in some]

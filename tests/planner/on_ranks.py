"""What ranks do for the tests of predictions: a step of every job, paced in model time."""

from __future__ import annotations

from course.labs.work_blend import Seen, blend_step
from minipar.hardware import Cluster
from minipar.planner.job import Job


def steps(jobs: list[tuple[Job, Cluster]]) -> list[Seen]:
    return [blend_step(job, hardware) for job, hardware in jobs]

"""Who chose whom: the counts of a step that was run, in place of a guess that every expert is chosen equally often.

``routed[rank][expert]`` are the copies that a rank routed to an expert in all its layers and microbatches of one step, as
``minipar.expert_parallel.layer.routed`` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from minipar.checks import not_whole, refuse
from minipar.expert_parallel.dispatch import experts_by_rank
from minipar.planner.job import Job, Place

Routed = Sequence[Sequence[int]]  # [ranks][experts]


def travelling(job: Job, place: Place, routed: Routed) -> int:
    """Copies that leave this rank for experts elsewhere, and results that it sends back to where they came from."""
    refuse_other_counts(job, routed)
    own, here = job.rank(place), _own_experts(job, place)
    leaving = sum(count for expert, count in enumerate(routed[own]) if expert not in here)
    return leaving + arriving(job, place, routed) - sum(routed[own][expert] for expert in here)


def arriving(job: Job, place: Place, routed: Routed) -> int:
    """Copies for this rank's experts, its own ones included."""
    refuse_other_counts(job, routed)
    return sum(routed[rank][expert] for rank in job.line("ep", place) for expert in _own_experts(job, place))


def refuse_other_counts(job: Job, routed: Routed) -> None:
    """Raise ValueError where ``routed`` is no table of counts, or one of another job."""
    if len(routed) != job.ranks or any(len(row) != job.config.experts for row in routed):
        raise ValueError(f"routed needs a row for each of {job.ranks} ranks, of {job.config.experts} counts each: one an expert")
    refuse(*(not_whole("a count of routed copies", count, 0) for row in routed for count in row))


def _own_experts(job: Job, place: Place) -> range:
    sizes, member = experts_by_rank(job.config.experts, job.ep), job.line("ep", place).index(job.rank(place))
    return range(sum(sizes[:member]), sum(sizes[: member + 1]))

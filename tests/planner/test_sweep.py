"""Bytes to the byte, for every way to split one step over eight ranks: by every axis, dense and with experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from minipar import GPTConfig
from minipar.planner import Job, bytes_by_axis
from minipar.planner.split import divisors, splits_of
from minipar.planner.traffic import rank_bytes
from tests.planner.on_ranks import sent, sent_by_each

RANKS = 8
DENSE = GPTConfig(layers=6, width=32, heads=8, seq=64, tied=True)
MOE = GPTConfig(layers=6, width=32, heads=8, seq=64, experts=8)


def jobs(config: GPTConfig) -> list[Job]:
    """Every mesh of eight ranks, by sequence or not where there is tp."""
    found = []
    for dp, pp, cp, tp in splits_of(RANKS, 4):
        for ep in divisors(dp * cp * tp) if config.experts else [1]:
            for sequence_parallel in (False, True) if tp > 1 else (False,):
                found.append(Job(config, 17, dp, pp, cp, tp, ep, 2, sequence_parallel=sequence_parallel))
    return [job for job in found if job.refusal() is None]


def name(job: Job) -> str:
    axes = "x".join(f"{axis}{size}" for axis, size in job.mesh.items() if size > 1)
    return axes + ("-moe" if job.config.experts else "") + ("-sequence" if job.sequence_parallel else "")


def check(job: Job, seen: list[tuple[dict[str, float], list[int]]]) -> None:
    rows = [row for _, row in seen] if job.config.experts else None
    for place, (counted, _) in zip(job.places(), seen, strict=True):
        assert dict(rank_bytes(job, place, rows)) == pytest.approx(counted, rel=1e-12), (name(job), place)
    total: Counter[str] = Counter()
    for counted, _ in seen:
        total.update(counted)
    assert bytes_by_axis(job, rows) == pytest.approx(dict(total), rel=1e-12)


SAMPLE = [
    Job(DENSE, 17, dp=2, pp=2, tp=2, microbatches=2, sequence_parallel=True),
    Job(MOE, 17, dp=2, cp=2, tp=2, ep=4, microbatches=2),
]


def test_some_splits_over_eight_ranks_send_what_was_predicted(ranks: Callable[[int], Any]) -> None:
    by_rank = ranks(RANKS).run(sent_by_each, SAMPLE)
    for i, job in enumerate(SAMPLE):
        check(job, [own[i] for own in by_rank])


def test_the_sweep_covers_every_product_of_eight_that_can_run() -> None:
    meshes = {(job.dp, job.pp, job.cp, job.tp) for job in jobs(DENSE)}
    assert meshes == set(splits_of(RANKS, 4))
    assert {(job.dp, job.pp, job.cp, job.tp) for job in jobs(MOE) if job.ep == 1} == meshes


@pytest.mark.full
@pytest.mark.parametrize("job", [*jobs(DENSE), *jobs(MOE)], ids=name)
def test_every_split_over_eight_ranks_sends_what_was_predicted(ranks: Callable[[int], Any], job: Job) -> None:
    check(job, ranks(RANKS).run(sent, job))

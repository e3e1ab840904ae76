"""Every way to split one step of a small GPT over a few ranks, fastest first: each predicted as it would be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from minipar.checks import not_number, not_one_of, not_whole, refuse
from minipar.hardware import Cluster
from minipar.model import GPTConfig
from minipar.planner.job import Job
from minipar.planner.job_memory import OPTIMIZERS, fullest
from minipar.planner.split import divisors, splits_of
from minipar.planner.step import Step, predict_step

MICROBATCHES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Ranking:
    """The steps that fit under the memory cap, fastest first; and those that do not, with the bytes of their fullest rank."""

    fitting: list[Step] = field(default_factory=list)
    too_large: list[tuple[Job, float]] = field(default_factory=list)

    @property
    def best(self) -> Step:
        if not self.fitting and not self.too_large:
            raise ValueError("no split is legal for this model and batch")
        if not self.fitting:
            raise ValueError(f"no split fits under the cap; the smallest needs {self.too_large[0][1] / 1e6:.1f} MB")
        return self.fitting[0]


def rank_splits(
    config: GPTConfig,
    hardware: str | Cluster,
    ranks: int,
    rows: int,
    memory_cap: float = float("inf"),
    microbatches: Sequence[int] = MICROBATCHES,
    optimizer: str = "adamw",
) -> Ranking:
    """Predict every legal split of a batch of ``rows`` sequences over ``ranks`` ranks. ``memory_cap`` is in bytes of one rank."""
    refuse(not_whole("ranks", ranks), not_whole("rows", rows), not_one_of("optimizer", optimizer, OPTIMIZERS))
    refuse(*(not_whole("microbatches", count) for count in microbatches), not_number("memory_cap", memory_cap))
    if not isinstance(config, GPTConfig):
        raise TypeError(f"rank_splits takes a GPTConfig, not {config!r}: for a Transformer there is plan")
    fitting, too_large = [], []
    for job in jobs(config, ranks, rows, microbatches):
        needs = fullest(job, optimizer).total
        if needs <= memory_cap:
            fitting.append(predict_step(job, hardware))
        else:
            too_large.append((job, needs))
    return Ranking(sorted(fitting, key=lambda step: step.seconds), sorted(too_large, key=lambda pair: pair[1]))


def jobs(config: GPTConfig, ranks: int, rows: int, microbatches: Sequence[int] = MICROBATCHES) -> Iterator[Job]:
    """All legal splits, 1F1B where there is a pipeline, and split by sequence wherever by tensor."""
    for dp, pp, cp, tp in splits_of(ranks, 4):
        for ep in divisors(dp * cp * tp) if config.experts else [1]:
            one = Job(config, rows, dp, pp, cp, tp, ep, sequence_parallel=True)
            for job in (replace(one, microbatches=count) for count in microbatches):
                if job.refusal() is None:
                    yield job

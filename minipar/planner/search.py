"""Every legal way to split a model over a cluster, fastest first.

A split over the memory cap is not dropped in silence: it is listed apart, with the bytes it would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from minipar.checks import not_above_zero, not_whole, refuse
from minipar.hardware import Cluster, cluster
from minipar.planner.clock import Clock, StepTime
from minipar.planner.memory import MIXED_ADAM, BytesPerParam, Memory, memory
from minipar.planner.shape import Transformer, utilisation
from minipar.planner.split import Split, divisors, splits_of

MOST_RANKS = 2**20  # more than any cluster has; the ways to split more take long to list


@dataclass(frozen=True)
class Plan:
    """One split with what it is predicted to need and reach."""

    split: Split
    time: StepTime
    memory: Memory
    tokens_per_second: float  # of the whole cluster
    mfu: float
    rank_bytes: dict[str, float]  # that a rank of the first stage sends in a step, by axis


@dataclass(frozen=True)
class TooLarge:
    """A legal split that does not fit in memory."""

    split: Split
    needs_bytes: float
    cap_bytes: float

    def __str__(self) -> str:
        return f"{self.split}: needs {self.needs_bytes / 1e9:.1f} GB of {self.cap_bytes / 1e9:.1f} GB"


@dataclass(frozen=True)
class Plans:
    """The splits that fit, fastest first, and those that do not, smallest first."""

    fitting: list[Plan] = field(default_factory=list)
    too_large: list[TooLarge] = field(default_factory=list)

    @property
    def best(self) -> Plan:
        if not self.fitting:
            least = self.too_large[0] if self.too_large else None
            raise ValueError(f"no split fits; the smallest is {least}" if least else "no split is legal for this model and batch")
        return self.fitting[0]


def predict(model: Transformer, split: Split, hardware: str | Cluster, cost: BytesPerParam = MIXED_ADAM) -> Plan:
    """Time, memory and speed of one split. Refused with the reason where the split is impossible."""
    reason = split.refusal(model)
    if reason is not None:
        raise ValueError(reason)
    where = cluster(hardware)
    clock = Clock(model, split, where)
    time = clock.step()
    tokens = split.batch * model.seq
    mfu = utilisation(model.model_flops(tokens), time.total, split.ranks, where.device.peak_flops)
    return Plan(split, time, memory(model, split, cost), tokens / time.total, mfu, clock.rank_bytes())


def plan(
    model: Transformer,
    hardware: str | Cluster,
    ranks: int,
    batch: int,
    memory_cap: float | None = None,
    candidates: Iterable[Split] | None = None,
    cost: BytesPerParam = MIXED_ADAM,
) -> Plans:
    """Rank the legal splits of ``batch`` sequences over ``ranks`` devices by predicted step time.

    ``memory_cap`` is in bytes per device; left out, it is the device's own memory. ``candidates`` are the splits to judge; left
    out, they are those of ``splits(...)``. Those that cannot run are left out. Raises ValueError for numbers that none can meet.
    """
    refuse(not_whole("ranks", ranks), not_whole("batch", batch))
    refuse(None if ranks <= MOST_RANKS else f"ranks must be at most {MOST_RANKS:,}, and is {ranks:,}")
    refuse(None if memory_cap is None else not_above_zero("memory_cap", memory_cap))
    candidates = None if candidates is None else list(candidates)
    refuse(*(None if isinstance(c, Split) else f"a candidate must be a Split, not {c!r}" for c in candidates or ()))
    if not isinstance(model, Transformer):
        raise TypeError(f"plan takes a Transformer, not {model!r}: Transformer.of(config) is that of a GPTConfig")
    where = cluster(hardware)
    cap = where.device.memory_bytes if memory_cap is None else memory_cap
    fitting, too_large = [], []
    for split in splits(model, where, ranks, batch) if candidates is None else candidates:
        if split.refusal(model) is not None:
            continue
        needs = memory(model, split, cost).total
        if needs <= cap:
            fitting.append(predict(model, split, where, cost))
        else:
            too_large.append(TooLarge(split, needs, cap))
    return Plans(sorted(fitting, key=lambda p: p.time.total), sorted(too_large, key=lambda t: t.needs_bytes))


def splits(model: Transformer, where: Cluster, ranks: int, batch: int) -> Iterator[Split]:
    """Splits worth judging: tensor parallelism within a node, microbatches of 1 to 8, with and without chunks and recomputation."""
    for dp, pp, cp, tp in splits_of(ranks, 4):
        if tp > where.ranks_per_node or batch % dp or pp > model.layers or cp > 16:
            continue
        for ep in _expert_sizes(model, dp * cp * tp):
            for microbatch in (b for b in (1, 2, 4, 8) if batch // dp % b == 0):
                for chunks in _chunk_counts(model, pp, batch // (dp * microbatch)):
                    for recompute in ("none", "full"):
                        yield Split(batch, dp, pp, cp, tp, ep, microbatch, chunks, recompute=recompute, zero=1)


def _expert_sizes(model: Transformer, ranks: int) -> list[int]:
    return [n for n in divisors(model.experts) if ranks % n == 0] if model.experts else [1]


def _chunk_counts(model: Transformer, pp: int, microbatches: int) -> list[int]:
    """One chunk, and two or four where the layers divide and the microbatches come in rounds of ``pp``."""
    if pp == 1 or microbatches % pp:
        return [1]
    return [v for v in (1, 2, 4) if model.layers % (pp * v) == 0] or [1]

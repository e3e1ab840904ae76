"""Lesson 15: split a model over four ranks so that it fits under a memory cap and reaches a target speed, whatever the link."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

from course.exercises.exercise import Case, Exercise, Seen, Wrong
from minipar.hardware import Cluster, Device, Link
from minipar.model import GPTConfig
from minipar.planner.job import Job
from minipar.planner.memory import Memory
from minipar.planner.ranking import rank_splits
from minipar.trace import COMM

RANKS, ROWS = 4, 16
CONFIG = GPTConfig(layers=4, width=64, heads=8, seq=64)
CAP = 3.5e6  # bytes of live tensors on a rank
NEAR = 0.95  # of the best split's speed is enough
DEVICE = Device("small", 4e9, CAP, 20e9, efficiency=1.0)
LINKS = {"fast": Link("fast", 1e-6, 2e9), "slow": Link("slow", 50e-6, 50e6)}
SIZES = ("dp", "pp", "cp", "tp", "microbatches")


class Tried(NamedTuple):
    """What one rank showed of a split."""

    split: Any
    refused: str = ""
    memory: Memory | None = None
    seconds: float = 0.0  # of a step, in the modelled hardware's time
    by_axis: dict[str, float] | None = None  # seconds in messages


def hardware(link: str) -> Cluster:
    return Cluster(link, DEVICE, LINKS[link], LINKS[link])


def trial(answer: Any, case: Case) -> Tried:
    from course.labs.work_blend import blend_step

    split = answer(case.setting)
    refused = misfit(split)
    if refused:
        return Tried(split, refused)
    seen = blend_step(job_of(split), hardware(case.setting))
    spent: Counter[str] = Counter()
    for span in seen.spans:
        if span.lane == COMM:
            spent[span.axis] += span.seconds  # type: ignore[assignment]
    return Tried(split, "", seen.memory, seen.seconds, dict(spent))


def misfit(split: Any) -> str:
    """Why this is no split of four ranks; "" if it is one."""
    if not isinstance(split, dict):
        return f"your function returned {type(split).__name__}; return a dict of sizes, such as {{'dp': 2, 'pp': 2}}."
    unknown = [name for name in split if name not in SIZES]
    if unknown:
        return f"there is no size {unknown[0]!r}; the sizes are {', '.join(SIZES)}."
    sizes = {name: split.get(name, 1) for name in SIZES}
    bad = next((name for name, size in sizes.items() if not isinstance(size, int) or size < 1), None)
    if bad:
        return f"{bad} is {sizes[bad]!r}; a size is a whole number, at least 1."
    product = sizes["dp"] * sizes["pp"] * sizes["cp"] * sizes["tp"]
    if product != RANKS:
        factors = " x ".join(f"{name} {sizes[name]}" for name in SIZES[:4])
        return f"{factors} = {product} ranks, and there are {RANKS}."
    reason = job_of(split).refusal()
    return f"this split cannot run: {reason}." if reason else ""


def job_of(split: dict[str, Any]) -> Job:
    return Job(CONFIG, ROWS, **split, sequence_parallel=True)


def judge(seen: Seen) -> str | None:
    refused = next((tried.refused for tried in seen.values if tried.refused), None)
    return refused or _over_the_cap(seen.values) or _too_slow(seen.values, seen.case.setting)


def _over_the_cap(tried: list[Tried]) -> str | None:
    totals = [own.memory.total if own.memory else 0.0 for own in tried]
    rank = totals.index(max(totals))
    memory = tried[rank].memory
    if memory is None or totals[rank] <= CAP:
        return None
    parts = {"parameters": memory.params, "gradients": memory.gradients, "optimizer state": memory.optimizer}
    parts["activations"] = memory.activations
    most = max(parts, key=lambda name: parts[name])
    return (
        f"rank {rank} holds {totals[rank] / 1e6:.1f} MB of live tensors (counted), and the cap is {CAP / 1e6:.1f} MB; "
        f"most of it, {parts[most] / 1e6:.1f} MB, is {most}."
    )


def _too_slow(tried: list[Tried], link: str) -> str | None:
    tokens = ROWS * CONFIG.seq
    speed, wanted = tokens / max(own.seconds for own in tried), target(link)
    if speed >= wanted:
        return None
    spent: Counter[str] = Counter()
    for own in tried:
        spent.update(own.by_axis or {})
    whole = sum(own.seconds for own in tried)
    axis, seconds = spent.most_common(1)[0] if spent else ("", 0.0)
    head = f"on the {link} link it fits, and makes {speed:,.0f} tokens/s (paced); the target is {wanted:,.0f} (predicted)."
    work = tokens * _flops_per_token() / DEVICE.peak_flops / whole
    idle = 1 - work - sum(spent.values()) / whole
    if idle > seconds / whole:
        return f"{head} For {100 * idle:.0f} % of the time ranks wait for work to come (paced)."
    return f"{head} {100 * seconds / whole:.0f} % of the time goes into messages over {axis} (paced)."


def _flops_per_token() -> float:
    from minipar.planner import Transformer

    return Transformer.of(CONFIG).model_flops(1)


@lru_cache
def target(link: str) -> float:
    """Tokens per second that an answer must reach: near the best split's."""
    return NEAR * rank_splits(CONFIG, hardware(link), RANKS, ROWS, CAP).best.tokens_per_second


def praise(seen: Seen) -> str:
    most = max(own.memory.total for own in seen.values if own.memory)
    speed = ROWS * CONFIG.seq / max(own.seconds for own in seen.values)
    link, wanted = seen.case.setting, target(seen.case.setting)
    fits = f"the fullest rank holds {most / 1e6:.1f} MB (counted) under {CAP / 1e6:.1f} MB"
    return f"{fits}; on the {link} link {speed:,.0f} tokens/s (paced), above {wanted:,.0f} (predicted)."


def reference(link: str) -> dict[str, int]:
    return {"fast": {"dp": 2, "tp": 2, "microbatches": 8}, "slow": {"dp": 2, "pp": 2, "microbatches": 8}}[link]


def _copies(link: str) -> dict[str, int]:
    """The simplest way: every rank holds the whole model."""
    return {"dp": 4, "microbatches": 4}


def _one_microbatch(link: str) -> dict[str, int]:
    return {"dp": 2, "tp": 2}


def _pipeline_always(link: str) -> dict[str, int]:
    """Best on the slow link, and taken for the fast one as well."""
    return {"dp": 2, "pp": 2, "microbatches": 8}


def _tensor_always(link: str) -> dict[str, int]:
    """Holds the least of all, and is fast on the fast link."""
    return {"tp": 4, "microbatches": 8}


def _two_ranks(link: str) -> dict[str, int]:
    return {"tp": 2, "microbatches": 8}


def _too_many_microbatches(link: str) -> dict[str, int]:
    return {"dp": 2, "pp": 2, "microbatches": 16}


def _another_axis(link: str) -> dict[str, int]:
    return {"fsdp": 4}


def _half_a_rank(link: str) -> dict[str, float]:
    return {"dp": 8, "tp": 0.5}


def _forgets_to_return(link: str) -> None:
    _tensor_always(link)


EXERCISE = Exercise(
    name="fit-and-beat",
    lesson=15,
    task="Split a GPT over four ranks so that it fits under the memory cap and comes near the best speed, on either link.",
    takes=("link",),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("copies everywhere", _copies, "is optimizer state."),
        Wrong("one microbatch", _one_microbatch, "is activations."),
        Wrong("a pipeline always", _pipeline_always, "of the time ranks wait for work to come"),
        Wrong("tensor parallel always", _tensor_always, "of the time goes into messages over tp"),
        Wrong("two ranks idle", _two_ranks, "tp 2 = 2 ranks, and there are 4"),
        Wrong("too many microbatches", _too_many_microbatches, "this split cannot run: 16 rows do not reach"),
        Wrong("an axis that is not", _another_axis, "there is no size 'fsdp'"),
        Wrong("half a rank", _half_a_rank, "tp is 0.5; a size is a whole number"),
        Wrong("no return", _forgets_to_return, "your function returned NoneType"),
    ),
    hints=(
        "`rank_splits` of `minipar.planner` predicts every split of a model over a few ranks, and takes a `memory_cap` in bytes.",
        "Three things make a rank lighter: tp and pp leave it fewer parameters, and more microbatches leave it fewer activations.",
        "Count what each axis sends for one microbatch. One of them sends in every layer: that one wants the fast link.",
    ),
    praise=praise,
    cases=(Case(RANKS, 0, "slow"), Case(RANKS, 1, "fast")),  # nothing here depends on the seed
    seconds=30.0,
)

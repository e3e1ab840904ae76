"""Lesson 8: GPipe turned into 1F1B: the same time, and never more than p - rank activations at once."""

from __future__ import annotations

from course.exercises.exercise import Exercise, Seen, Wrong, cases
from course.exercises.orders import Pipe, read, timed, too_slow, trial, words
from minipar.pipeline_parallel import Schedule
from minipar.trace import Timeline


def judge(seen: Seen) -> str | None:
    schedule = read(seen)
    if isinstance(schedule, str):
        return schedule
    timeline = timed(schedule, seen.case)
    return _holds_too_much(schedule, timeline) or too_slow(timeline, seen.case)


def _holds_too_much(schedule: Schedule, timeline: Timeline) -> str | None:
    """The first rank, and the time, at which more activations are held than 1F1B ever holds there."""
    for rank in range(schedule.ranks):
        limit, peak = schedule.ranks - rank, timeline.peak_activations[rank]
        if peak > limit:
            held = 0
            for span in timeline.of(rank):
                held += {"F": 1, "B": -1, "W": -1}.get(span.name, 0)
                if held > limit:
                    return (
                        f"rank {rank} may hold p - rank = {limit} activations; at time {span.start:g}, with "
                        f"{span.name}{span.microbatch}, it holds {held}, and {peak} at its peak (counted)."
                    )
    return None


def praise(seen: Seen) -> str:
    schedule = read(seen)
    assert not isinstance(schedule, str)
    timeline, m = timed(schedule, seen.case), seen.case.setting.microbatches
    return (
        f"the ranks hold at most {', '.join(map(str, timeline.peak_activations))} activations (counted) where GPipe holds {m} "
        f"on each; idle share {100 * timeline.bubble:.1f} % (predicted), the same as GPipe's."
    )


def row(warmup: int, microbatches: int) -> list[str]:
    """``warmup`` forwards ahead, then one forward, one backward in turn, then the backwards that are left."""
    ahead = min(warmup, microbatches)
    steady = [word for k in range(microbatches - ahead) for word in (f"F{k + ahead}", f"B{k}")]
    return words("F", range(ahead)) + steady + words("B", range(microbatches - ahead, microbatches))


def reference(rank: int, ranks: int, microbatches: int) -> list[str]:
    return row(ranks - rank - 1, microbatches)


def _gpipe(rank: int, ranks: int, microbatches: int) -> list[str]:
    return words("F", range(microbatches)) + words("B", range(microbatches))


def _one_ahead_too_many(rank: int, ranks: int, microbatches: int) -> list[str]:
    return row(ranks - rank, microbatches)


def _same_on_every_rank(rank: int, ranks: int, microbatches: int) -> list[str]:
    return row(ranks - 1, microbatches)


def _none_ahead(rank: int, ranks: int, microbatches: int) -> list[str]:
    return row(0, microbatches)


def _wrong_way_round(rank: int, ranks: int, microbatches: int) -> list[str]:
    return row(rank, microbatches)


def _no_cooldown(rank: int, ranks: int, microbatches: int) -> list[str]:
    return row(ranks - rank - 1, microbatches)[: 2 * microbatches - (ranks - rank - 1)]


EXERCISE = Exercise(
    name="one-f-one-b",
    lesson=8,
    task="Write what one rank does so that it holds at most p - rank activations, and the pipeline takes no longer than GPipe.",
    takes=("rank", "ranks", "microbatches"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("GPipe as it was", _gpipe, "at time 4, with F4, it holds 5, and 8 at its peak"),
        Wrong("one ahead too many", _one_ahead_too_many, "at time 4, with F4, it holds 5, and 5 at its peak"),
        Wrong("the same on every rank", _same_on_every_rank, "rank 1 may hold p - rank = 3 activations"),
        Wrong("none ahead", _none_ahead, "rank 0 stands idle for 9 before B0"),
        Wrong("wrong way round", _wrong_way_round, "nobody can go on: rank 0 stands at"),
        Wrong("backwards left over", _no_cooldown, "rank 0: missing B5"),
    ),
    hints=(
        "The last rank needs no forward ahead: it can turn each microbatch round at once. How many must rank 0 send ahead?",
        "First some forwards alone, then pairs of one F and one B. The pairs end when the forwards do; some backwards are left.",
        "With `w` forwards ahead, the k-th pair is `F(k+w) B(k)`.",
    ),
    praise=praise,
    cases=cases(ranks=(1,), settings=(Pipe(4, 8), Pipe(3, 2))),
)

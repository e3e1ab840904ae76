"""Lesson 7: the order of GPipe, written down: all forwards, then all backwards."""

from __future__ import annotations

from course.exercises.exercise import Exercise, Seen, Wrong, cases
from course.exercises.orders import Pipe, name, read, timed, too_slow, trial, words


def judge(seen: Seen) -> str | None:
    schedule = read(seen)
    if isinstance(schedule, str):
        return schedule
    for rank, row in enumerate(schedule.rows):
        forwards_over = False
        for slot, action in enumerate(row):
            if action.kind == "F" and forwards_over:
                return f"legal, but not GPipe: rank {rank}, slot {slot}: {name(action)} comes after {name(row[slot - 1])}."
            forwards_over = action.kind != "F"
    return too_slow(timed(schedule, seen.case), seen.case)


def praise(seen: Seen) -> str:
    pipe = seen.case.setting
    schedule = read(seen)
    assert not isinstance(schedule, str)
    actions = sum(map(len, schedule.rows))
    idle = 100 * timed(schedule, seen.case).bubble
    return (
        f"{actions} actions, each once and in a legal order (counted); idle share "
        f"{idle:.1f} % (predicted), as (p-1)/(m+p-1) says for p={pipe.ranks}, m={pipe.microbatches}."
    )


def reference(rank: int, ranks: int, microbatches: int) -> list[str]:
    return words("F", range(microbatches)) + words("B", range(microbatches))


def _one_short(rank: int, ranks: int, microbatches: int) -> list[str]:
    return words("F", range(microbatches - 1)) + words("B", range(microbatches - 1))


def _from_one(rank: int, ranks: int, microbatches: int) -> list[str]:
    return words("F", range(1, microbatches + 1)) + words("B", range(1, microbatches + 1))


def _backward_first(rank: int, ranks: int, microbatches: int) -> list[str]:
    return words("B", range(microbatches)) + words("F", range(microbatches))


def _one_by_one(rank: int, ranks: int, microbatches: int) -> list[str]:
    return [word for k in range(microbatches) for word in (f"F{k}", f"B{k}")]


def _odd_ranks_reversed(rank: int, ranks: int, microbatches: int) -> list[str]:
    order = range(microbatches)[:: -1 if rank % 2 else 1]
    return words("F", order) + words("B", range(microbatches))


def _twice(rank: int, ranks: int, microbatches: int) -> list[str]:
    return words("F", range(microbatches)) * 2


def _typo(rank: int, ranks: int, microbatches: int) -> str:
    return "F0-F7 B0-B7"


def _forgets_to_return(rank: int, ranks: int, microbatches: int) -> None:
    words("F", range(microbatches))


EXERCISE = Exercise(
    name="gpipe-order",
    lesson=7,
    task="Write what one rank of a GPipe pipeline does, in order: a list of words such as 'F0' and 'B0'.",
    takes=("rank", "ranks", "microbatches"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("one microbatch short", _one_short, "rank 0: missing F7"),
        Wrong("counted from one", _from_one, "F8 names microbatch 8, and the microbatches are 0 to 7"),
        Wrong("backward first", _backward_first, "rank 0, slot 0: B0 comes before F0, which it needs"),
        Wrong("one by one", _one_by_one, "legal, but not GPipe: rank 0, slot 2: F1 comes after B0"),
        Wrong("odd ranks reversed", _odd_ranks_reversed, "rank 0 stands idle for 30 before B0"),
        Wrong("forwards twice", _twice, "rank 0, slot 8: F0 stands here a second time"),
        Wrong("not a list of words", _typo, "'F0-F7' is not an action"),
        Wrong("no return", _forgets_to_return, "rank 0 got None for a row"),
    ),
    hints=(
        "How many words has a row? Each microbatch goes forward once and backward once, on every rank.",
        "A list comprehension over `range(microbatches)` writes the forwards; a second one the backwards.",
    ),
    praise=praise,
    cases=cases(ranks=(1,), settings=(Pipe(4, 8), Pipe(3, 5))),
)

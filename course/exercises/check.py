"""Try an answer on real ranks, in every case of its exercise, and say what is right or the first thing that is not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from course.exercises.exercise import Case, Exercise, Seen, find
from course.exercises.hints import Hint, Hints
from course.exercises.verdict import Verdict


def check(name: str, answer: Any) -> Verdict:
    """Try ``answer`` on the exercise called ``name``; show the result as the last line of a cell.

    The answer runs on ranks of its own: it cannot harm yours, and one that never ends is stopped.
    """
    return examine(find(name), answer)


def hint(name: str, number: int | None = None) -> Hints | Hint:
    """The hints of an exercise, folded; or one of them, counted from 1."""
    texts = find(name).hints
    if number is None:
        return Hints(name, texts)
    if not 1 <= number <= len(texts):
        raise ValueError(f"{name} has hints 1 to {len(texts)}, not {number}")
    return Hint(texts[number - 1])


def examine(exercise: Exercise, answer: Any) -> Verdict:
    """The verdict on ``answer``: the first complaint in the order of the exercise's cases, or praise."""
    misfit = exercise.misfit(answer)
    if misfit:
        return Verdict(exercise.name, False, misfit)
    tried: list[Seen] = []
    for ranks, same in groupby(exercise.cases, key=lambda case: case.ranks):
        complaint = _with_ranks(ranks, exercise, answer, list(same), tried)
        if complaint:
            return Verdict(exercise.name, False, *complaint)
    return Verdict(exercise.name, True, exercise.praise(tried[0]), _where(exercise))


def _with_ranks(n: int, exercise: Exercise, answer: Any, same: list[Case], tried: list[Seen]) -> tuple[str, str] | None:
    """Try the cases of one world size in one pool; ``(message, where)`` of the first complaint."""
    from course import Ranks
    from course.exercises.trouble import Trouble, interrupted, told
    from course.ranks import RanksInterrupted

    with Ranks(n, device="cpu") as pool:
        for case in same:
            where = _here(case)
            try:
                out = pool.run(observe, exercise.trial, answer, case, timeout=exercise.seconds)
            except Trouble as error:
                return told(error, exercise), where
            except RanksInterrupted as error:  # not a verdict: the cells that wait behind this one must not run
                raise interrupted(error, exercise) from None
            if None in out:
                return f"rank {out.index(None)} left by sys.exit(): a function hands back its result by return.", where
            assert pool.last_run is not None
            seen = Seen(case, [value for value, _ in out], pool.last_run.timeline, [peak for _, peak in out])
            complaint = exercise.judge(seen)
            if complaint:
                return complaint, where
            tried.append(seen)
    return None


def observe(trial: Callable[[Any, Case], Any], answer: Any, case: Case) -> tuple[Any, int]:
    """On each rank: what the trial returns, and the most bytes of tensors alive at once in calls of the answer."""
    from course.exercises.peak import PeakBytes

    peaks = [0]

    def watched(*args: Any) -> Any:
        with PeakBytes() as peak:
            value = answer(*args)
        peaks.append(peak.most)
        return value

    value = trial(watched if callable(answer) else answer, case)
    return value, max(peaks)


def _here(case: Case) -> str:
    """Where a complaint arose. One process is not worth a word: the setting then says how many ranks the answer is about."""
    setting = [] if case.setting is None else [str(case.setting)]
    ranks = f"on {case.ranks} ranks, " if case.ranks > 1 else "with "
    return f"tried {ranks}{', '.join([*setting, f'seed {case.seed}'])}"


def _where(exercise: Exercise) -> str:
    ranks = list(dict.fromkeys(case.ranks for case in exercise.cases))
    on = f"on {' and '.join(map(str, ranks))} ranks, " if ranks != [1] else "in "
    return f"tried {on}{len(exercise.cases)} cases"

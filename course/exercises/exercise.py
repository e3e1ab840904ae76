"""What an exercise is: a task, a way to try an answer on real ranks, a judge, and the wrong answers it knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pkgutil import iter_modules
from typing import Any

from minipar.trace import COMM, Span, Timeline


@dataclass(frozen=True)
class Case:
    """One setting in which an answer is tried."""

    ranks: int  # processes
    seed: int
    setting: Any = None  # whatever else the exercise varies


def cases(ranks: Sequence[int] = (4, 3), seeds: Sequence[int] = (0, 1), settings: Sequence[Any] = (None,)) -> tuple[Case, ...]:
    """Every combination, world size by world size: an answer that is only right by luck fails one of them."""
    return tuple(Case(n, seed, setting) for n, setting, seed in product(ranks, settings, seeds))


@dataclass
class Seen:
    """What one trial showed: the values by rank, every call, and the most memory each rank held. All counted, none timed."""

    case: Case
    values: list[Any]  # what ``trial`` returned, by rank
    timeline: Timeline
    peaks: list[int]  # bytes of tensors made by the answer and alive at once, by rank

    def calls(self, rank: int, *names: str) -> list[Span]:
        """The communication calls of ``rank`` in order of their launch; only those called ``names``, if any are given."""
        spans = (s for s in self.timeline.of(rank, COMM) if s.name != "barrier")
        return [s for s in spans if not names or s.name in names]

    def sent(self, rank: int) -> float:
        """Bytes that ``rank`` put on the wire."""
        return sum(s.nbytes for s in self.calls(rank))


@dataclass(frozen=True)
class Wrong:
    """An answer that somebody will give, and what it must hear."""

    name: str
    answer: Any
    hears: str  # part of the message to this answer, and of no other wrong answer's


@dataclass(frozen=True)
class Exercise:
    """One exercise. ``trial`` runs on every rank; ``judge`` and ``praise`` run in the notebook's process.

    ``trial(answer, case)`` makes the inputs from ``case.seed``, calls the answer, and returns what the judge needs.
    ``judge(seen)`` returns None, or one sentence that names rank, tensor and cause, and never the answer.
    ``praise(seen)`` states what was counted, for an answer that is right.
    """

    name: str
    lesson: int
    task: str
    takes: tuple[str, ...] | None  # the parameters of the function to write; None: the answer is a value
    trial: Callable[[Any, Case], Any]
    judge: Callable[[Seen], str | None]
    reference: Any
    wrong: tuple[Wrong, ...]
    hints: tuple[str, ...]
    praise: Callable[[Seen], str]
    cases: tuple[Case, ...] = field(default_factory=cases)
    seconds: float = 15.0  # a trial that takes longer is stopped

    def misfit(self, answer: Any) -> str | None:
        """Why ``answer`` cannot even be tried, or None."""
        if self.takes is None:
            return None
        wanted = f"a function of ({', '.join(self.takes)})"
        if not callable(answer):
            return f"check wants {wanted}; it got {type(answer).__name__}. Pass the function itself, without calling it."
        from inspect import signature

        try:
            signature(answer).bind(*self.takes)
        except TypeError as error:
            return f"check calls your function with ({', '.join(self.takes)}): {error}."
        except ValueError:  # a builtin without a signature
            return None
        return None


def exercises() -> dict[str, Exercise]:
    """All exercises by name, in order of their lessons. Each file of this folder that defines ``EXERCISE`` is one."""
    package = import_module("course.exercises")
    modules = (import_module(f"course.exercises.{m.name}") for m in iter_modules(package.__path__))
    found = [module.EXERCISE for module in modules if hasattr(module, "EXERCISE")]
    return {e.name: e for e in sorted(found, key=lambda e: (e.lesson, e.name))}


def find(name: str) -> Exercise:
    known = exercises()
    if name not in known:
        raise ValueError(f"no exercise {name!r}; there are {', '.join(known)}")
    return known[name]

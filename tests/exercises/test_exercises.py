"""Every exercise accepts its reference, and every wrong answer hears its own message and no other's."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

import course
from course import Ranks
from course.exercises import check
from course.exercises.check import examine
from course.exercises.exercise import Exercise, Wrong, exercises

ALL = list(exercises().values())
PATIENCE = 100  # seconds for a trial that ends, on however busy a machine
WRONG = [pytest.param(e, w, id=f"{e.name}: {w.name}") for e in ALL for w in e.wrong]


@pytest.fixture
def warm(ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    """``check`` finds ranks that are there already, where it would start its own: many answers, few processes."""
    monkeypatch.setattr(course, "Ranks", lambda n, device: nullcontext(ranks(n)))


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_the_reference_is_right_in_every_case(exercise: Exercise) -> None:
    verdict = examine(replace(exercise, seconds=PATIENCE), exercise.reference)
    assert verdict.ok, verdict
    assert "(counted)" in verdict.message


def test_a_right_answer_is_praised_on_ranks_of_its_own() -> None:
    exercise = exercises()["sum-across-ranks"]
    assert check(exercise.name, exercise.reference).ok


@pytest.mark.usefixtures("warm", "impatient")
@pytest.mark.parametrize(("exercise", "wrong"), WRONG)
def test_a_wrong_answer_hears_its_own_message(exercise: Exercise, wrong: Wrong) -> None:
    ends = "did not end" not in wrong.hears
    verdict = examine(replace(exercise, seconds=PATIENCE if ends else 1.0), wrong.answer)
    assert not verdict.ok
    assert [w.name for w in exercise.wrong if w.hears in verdict.message] == [wrong.name], verdict.message


@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_two_seeds_and_two_settings_are_tried(exercise: Exercise) -> None:
    assert len({case.seed for case in exercise.cases}) >= 2
    assert len({(case.ranks, str(case.setting)) for case in exercise.cases}) >= 2


@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_hints_come_one_inside_the_other(exercise: Exercise) -> None:
    from course.exercises import hint

    html = hint(exercise.name)._repr_html_()
    assert html.count("<details") == len(exercise.hints) >= 2
    assert html.index("</details>") > html.rindex("<summary")  # none closes before the last has opened


def test_an_answer_that_is_called_by_mistake_is_refused_before_any_rank_starts() -> None:
    assert "Pass the function itself" in check("sum-across-ranks", 3.0).message


def test_an_answer_with_other_parameters_hears_which_are_passed() -> None:
    assert "(x, axis)" in check("sum-across-ranks", lambda x: x).message


def test_an_error_in_an_answer_is_told_with_its_line() -> None:
    def divides(x, axis):
        return x / (axis.rank - 2)[0]

    verdict = check("sum-across-ranks", divides)
    assert "TypeError" in verdict.message
    assert "return x / (axis.rank - 2)[0]" in verdict.message
    assert "test_exercises.py" in verdict.message


def test_an_answer_that_kills_its_rank_is_told() -> None:
    import os

    def dies(x, axis):
        os._exit(7) if axis.rank == 1 else None
        return x

    assert "rank 1 ended by itself with exit code 7" in check("sum-across-ranks", dies).message


@pytest.mark.usefixtures("warm")
def test_an_answer_that_leaves_without_a_result_is_told_so() -> None:
    def leaves(x, axis):
        raise SystemExit

    def hands_back_what_only_its_rank_can_hold(x, axis):
        return threading.Lock()

    assert "rank 0 left by sys.exit()" in check("sum-across-ranks", leaves).message
    message = check("sum-across-ranks", hands_back_what_only_its_rank_can_hold).message
    assert "cannot be sent back" in message
    assert "here:" not in message


def test_a_later_case_catches_what_the_first_cannot() -> None:
    exercise = exercises()["ring-all-reduce"]

    def only_for_four(x, axis):
        return exercise.reference(x, axis) if axis.size == 4 else x

    verdict = examine(exercise, only_for_four)
    assert not verdict.ok
    assert verdict.tried == "tried on 3 ranks, seed 0"


def test_an_answer_tried_in_one_process_hears_of_the_pipeline_and_not_of_the_process() -> None:
    verdict = check("gpipe-order", lambda rank, ranks, microbatches: ["F0"])
    assert verdict.tried == "tried with a pipeline of 4 ranks, 8 microbatches, seed 0"
    right = check("gpipe-order", exercises()["gpipe-order"].reference)
    assert right.tried == f"tried in {len(exercises()['gpipe-order'].cases)} cases"


def test_a_verdict_reads_as_text_and_as_html() -> None:
    verdict = replace(check("sum-across-ranks", None), message="first\n  <line 2>")
    assert repr(verdict) == "Not yet: first\n  <line 2>"
    assert "&lt;line 2&gt;" in verdict._repr_html_()
    assert not verdict


def test_an_unknown_exercise_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="sum-across-ranks, ring-all-reduce"):
        check("nothing", None)


def test_an_interrupted_check_tells_of_the_exercise_and_of_the_learners_line() -> None:
    from types import SimpleNamespace

    from course.exercises.trouble import interrupted
    from course.ranks import RanksInterrupted

    lines = ("ranks: 0 was running (line 4 of Cell In[27])", "All ranks are idle and keep their variables.")
    error = RanksInterrupted(SimpleNamespace(headline="observe was interrupted", lines=lines))
    told = interrupted(error, exercises()["overlap"])
    assert str(told).splitlines() == [
        "the check of overlap was interrupted",
        "ranks: 0 was running (line 4 of your cell)",
        "Nothing was checked, and your own ranks are as they were.",
    ]

"""Without a browser a prediction takes its default guess, runs at once, and shows guess, theory and measurement together."""

from typing import Any

import pytest

from course.labs.figures import Figures
from course.predict import predict


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIPAR_ATTENDED", "0")


def test_the_default_guess_is_taken_and_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("input() was called"))
    asked = predict("Idle share?", run=lambda: 0.76, theory=lambda: 0.75, unit="share", guess=0.25)
    text = str(asked.table())
    assert all(part in text for part in ("25.0 %", "75.0 %", "predicted", "76.0 %", "measured"))
    data, _ = asked._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png"}


def test_words_are_answers_too_and_a_story_can_follow() -> None:
    asked = predict("Who?", run=lambda: ("rank 2", "it said so"), theory="rank 2", choices=("rank 1", "rank 2"), because="Why.")
    assert (asked.guess, asked.found) == ("rank 1", "rank 2")
    assert asked._repr_mimebundle_()[0]["text/plain"].endswith("Why.\nit said so")


@pytest.mark.parametrize(("answers", "choices"), [((2, 3), ()), (("two", "three"), ("two", "three"))], ids=["numbers", "words"])
@pytest.mark.parametrize("source", ["counted", "measured", "paced"])
def test_every_answer_says_how_it_was_come_by(answers: tuple, choices: tuple[str, ...], source: str) -> None:
    """In the table and in the picture; a guess is only a guess."""
    asked = predict(
        "How many?", run=lambda: answers[0], theory=answers[1], high=9, guess=answers[0], choices=choices, source=source
    )
    assert [(who, word) for who, _, word in asked.rows] == [("your guess", ""), ("theory", "predicted"), ("these ranks", source)]
    assert [row[2] for row in asked.table().rows] == ["-", "predicted", source]


def test_ranks_are_named_only_where_ranks_gave_the_answer() -> None:
    asked = predict("How many?", run=lambda: 3, theory=3, high=9, source="counted", witness="the layout")
    assert "the layout" in str(asked.table())
    assert "ranks" not in str(asked.table())
    assert asked.png() != predict("How many?", run=lambda: 3, theory=3, high=9, source="counted").png()


def test_a_word_that_says_nothing_about_an_answers_origin_is_refused() -> None:
    with pytest.raises(ValueError, match="counted, measured, paced, predicted, not ''"):
        predict("How many?", run=lambda: pytest.fail("it ran"), theory=1, source="")
    with pytest.raises(ValueError, match="not 'seen'"):
        Figures().find("messages", 3, source="seen")


@pytest.mark.parametrize(("theory", "options"), [(18.6, {"high": 8}), (-1, {}), ("rank 7", {"choices": ("rank 1", "rank 2")})])
def test_a_question_whose_answer_nobody_can_give_is_refused(theory: float | str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"theory says '?{theory}"):
        predict("Who, or how many?", run=lambda: pytest.fail("it ran"), theory=theory, **options)


def test_an_error_in_the_run_fails_the_cell() -> None:
    with pytest.raises(ZeroDivisionError):
        predict("Idle share?", run=lambda: 1 / 0, theory=0.75)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, False), ({"JPY_SESSION_NAME": "a.ipynb"}, True), ({"JPY_SESSION_NAME": "a.ipynb", "MINIPAR_ATTENDED": "0"}, False)],
)
def test_somebody_is_there_only_before_a_front_end(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    from course import attended

    for name in ("MINIPAR_ATTENDED", *attended._FRONT_ENDS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert attended.attended() is expected

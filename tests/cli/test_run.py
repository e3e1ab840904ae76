"""What ``minipar run`` says when a rank ends."""

from __future__ import annotations

from types import SimpleNamespace

from course import run
from course.ranks.errors import Trouble, explain
from course.ranks.slots import RankState
from course.ranks.watchdog import Scene


def test_nothing_is_told_of_the_ranks_of_a_program_that_ends(capsys):
    """In a notebook the last line says what became of the variables; here nobody will run anything on these ranks again."""
    states = (RankState(0, "running", 0.0), RankState(1, "dead", 0.0))
    scene = Scene({}, {}, frozenset(), {1: -9}, {}, states)
    error = explain(SimpleNamespace(ranks=2), Trouble("died"), scene, [1])
    assert "started again" in str(error)

    def killed(*_):
        raise error

    assert run._train(SimpleNamespace(start=killed), None) == 1
    told = capsys.readouterr().err
    assert told == f"minipar run: {error.headline}\nother ranks: 0 was running\n"
    assert error.headline.startswith("rank 1 was killed by SIGKILL")

"""Lesson 0: something happens to one rank. Who notices, when, and what is the learner told?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.labs.base import Lab, Settings
from course.labs.controls import Choice, Control, Slider
from course.labs.go import Go
from course.labs.work import KILLED, LOOPS, PAUSE, RAISES, SKIPS, STEPS, work
from course.views.canvas_view import CanvasView
from course.views.rank_states import Moment, RankStates
from minipar import comm

PATIENCE = 4.0  # seconds until the run is ended from outside, where nothing else ends it
TOLD = {  # what happens -> the error that the notebook shows, and at most after how many seconds
    RAISES: ("RankError", 1.0),
    KILLED: ("RankDied", 1.0),
    SKIPS: ("RanksStuck", 3.0),
    LOOPS: ("RanksTimeout", PATIENCE + 1.0),
}


class RanksLab(Lab):
    title = "A rank in trouble"

    def controls(self) -> dict[str, Control]:
        return {
            "ranks": Slider("ranks", 2, 8, 4),
            "which": Slider("which rank", 0, 7, 2),
            "when": Slider("at step", 0, STEPS - 1, 3),
            "what": Choice("what happens", list(TOLD), SKIPS),
        }

    def make_views(self) -> list[CanvasView]:
        self.states = RankStates()
        return [self.states]

    def refuse(self, v: Settings) -> str | None:
        if v.which >= v.ranks:
            return f"{v.ranks} ranks are numbered 0 to {v.ranks - 1}; there is no rank {v.which}."
        return None

    def predict(self, v: Settings) -> None:
        error, within = TOLD[v.what]
        more = (
            STEPS - 1 - v.when if v.what == SKIPS else 0
        )  # its next all-reduce meets the others' present one, and so on to the end
        self.figures.predict("the notebook shows", error)
        self.figures.predict("time until it does, at most", within + more * PAUSE, "s")
        self.figures.predict("all-reduces that all ranks finished", v.when + more)

    def measure(self, go: Go, v: Settings) -> str:
        worst: list[Any] = []

        def watch(pool: Any) -> None:
            states = pool.states()
            self.states.show(states)
            if trouble(states) >= trouble(worst):
                worst[:] = map(Moment.of, states)

        go(v.ranks, comm.barrier)  # the first run on new ranks loads what it needs
        timeout = PATIENCE if v.what == LOOPS else 60.0
        outcome = go.outcome(v.ranks, work, v.which, v.what, v.when, watch=watch, timeout=timeout)
        self.states.show(worst)  # the moment of most trouble stays on show
        began = [event.payload for event in outcome.run.events("mishap")]
        if outcome.error is None or not began:
            return "All ranks finished: nothing happened."
        finished = min(sum(s.name == "all_reduce" for s in outcome.timeline.of(rank)) for rank in range(v.ranks))
        self.figures.find("the notebook shows", type(outcome.error).__name__)
        self.figures.find("time until it does, at most", outcome.run.ended - began[0], "s", "measured")
        self.figures.find("all-reduces that all ranks finished", finished, source="counted")
        return f"{type(outcome.error).__name__}: {outcome.error}"


def trouble(states: Sequence[Any]) -> tuple[int, int]:
    """How many ranks are dead, or have waited longer than a step takes; and how many others have not been stopped yet."""
    hit = sum(s.state == "dead" or (s.state == "waiting" and s.seconds > PAUSE) for s in states)
    return hit, sum(s.state == "running" for s in states)

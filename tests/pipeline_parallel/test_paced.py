"""The clock of a paced rank, with a clock of its own in place of the real one."""

from __future__ import annotations

import pytest

from minipar import GPTConfig, Mesh
from minipar.data import batch
from minipar.model import GPT
from minipar.pipeline_parallel import Action, build, paced
from minipar.pipeline_parallel.action import needs
from minipar.pipeline_parallel.run import Pipeline, actions_of
from tests.pipeline_parallel import on_ranks
from tests.pipeline_parallel.on_ranks import TINY


class Moment:
    """A wrist watch that only moves when told to, or when someone waits."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Moment:
    moment = Moment()
    monkeypatch.setattr(paced, "now", moment.now)
    monkeypatch.setattr(paced.pacing, "wait_until", moment.wait_until)
    return moment


def test_a_late_start_leaves_less_waiting_behind_it(watch: Moment) -> None:
    clock = paced.Clock()
    first = clock.finish(clock.start(watch.time), 0.5, worked=0.1)
    watch.time += 0.004  # woken up late
    second = clock.start()
    assert second == first
    assert clock.finish(second, 0.5, worked=0.1) == watch.time == pytest.approx(101.0)


def test_an_action_starts_when_its_message_was_made(watch: Moment) -> None:
    clock = paced.Clock()
    clock.finish(clock.start(watch.time), 0.5, worked=0)
    watch.time = 103.001
    assert clock.start(arrived=103.0) == 103.0


def test_the_model_gives_way_to_what_the_computer_cannot_do(watch: Moment) -> None:
    clock = paced.Clock()
    end = clock.finish(clock.start(watch.time), 0.5, worked=2.0)
    assert end == watch.time == pytest.approx(102.0, abs=paced.GRACE)
    watch.time += 1
    assert clock.start() == watch.time - paced.GRACE


def test_a_paced_step_lasts_as_its_actions_should() -> None:
    seconds = {"F": 0.002, "B": 0.004, "I": 0.002, "W": 0.003}
    pipe = Pipeline(GPT(GPTConfig(**TINY)), build("zb-h1", 1, 2), Mesh(), pace=seconds)
    pipe.step(batch(0, 2, TINY["seq"]))
    t = pipe.timeline()
    assert t.source == "paced"
    assert [s.name for s in actions_of(t).spans] == ["F", "I", "W", "F", "I", "W"]
    assert all(s.seconds >= seconds[s.name] - 1e-9 for s in actions_of(t).spans)


def test_every_kind_of_action_needs_its_pace() -> None:
    with pytest.raises(ValueError, match="has I, W as well"):
        Pipeline(GPT(GPTConfig(**TINY)), build("zb-h1", 1, 2), Mesh(), pace={"F": 0.002})


@pytest.mark.parametrize("pace", [{"F": 1, "B": 1, "wire": 0}, {"F": 1, "B": 1, "comm": -1}])
def test_a_pace_that_makes_no_sense_is_refused(pace: dict[str, float]) -> None:
    with pytest.raises(
        ValueError, match=r"there is no 'wire'; give the seconds of F, I, W, B, comm|pace\['comm'\] of stage 0 is -1"
    ):
        Pipeline(GPT(GPTConfig(**TINY)), build("interleaved", 1, 2), Mesh(), pace=pace)


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_a_message_takes_its_time_on_a_paced_link_and_none_within_a_rank(ranks, name: str) -> None:
    """As in ``simulate``: an action starts when its rank is free and what it needs has arrived, never before."""
    seconds = {"F": 0.01, "B": 0.02, "I": 0.01, "W": 0.01, "comm": 0.03}
    schedule = build(name, 2, 3)
    spans = ranks(2).run(on_ranks.paced_actions, schedule, seconds)[0]
    at = {(s.name, s.stage, s.microbatch): s for s in spans}
    waits = []
    for s in spans:
        for what, stage in needs(Action(s.name, s.stage, s.microbatch), schedule.stages):
            before = next(
                at[kind, stage, s.microbatch] for kind in ("F" if what == "F" else "IB") if (kind, stage, s.microbatch) in at
            )
            waits.append(s.start - before.end - (seconds["comm"] if before.rank != s.rank else 0.0))
    assert min(waits) > -1e-9
    assert max(s.end for s in spans) - min(s.start for s in spans) >= schedule.simulate(0.01, 0.01, 0.01, 0.03).makespan - 1e-9

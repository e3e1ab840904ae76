"""The experts lab: counts as theory says, a load that balancing changes, and the same run again for the same settings."""

from collections.abc import Iterator

import pytest

from course import labs
from course.labs import pool
from course.labs.base import Settings
from course.labs.lab_experts import ExpertsLab, predicted, traffic
from minipar.trace import COMM

CARRIES = ("counts", "dispatch", "combine", "combine", "dispatch")
TRAFFIC, RANK, EXPERT = "all-to-all of a step, all ranks", "busiest rank, last steps", "busiest expert, last steps"
DROPPED = "dropped, last steps"
FULL = {"ranks": 2, "steps": 20, "top_k": 2, "capacity": 1.0}


@pytest.fixture(scope="module", autouse=True)
def nobody_there() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIPAR_ATTENDED", "0")
        yield
    pool.close()


@pytest.fixture(scope="module")
def alone() -> ExpertsLab:
    """Without any remedy; half as long and on half as many ranks as a learner's first run."""
    return labs.experts(ranks=2, steps=100)


@pytest.fixture(scope="module")
def full() -> ExpertsLab:
    return labs.experts(**FULL)


def found(lab: ExpertsLab, name: str) -> float:
    value, _, source = lab.figures.found[name]
    assert source == "counted"
    return float(value)


def calls(lab: ExpertsLab) -> list[str]:
    return [s.name for s in lab.timeline.measured.of(0, COMM)]


def test_without_balance_the_router_collapses_and_with_it_the_load_spreads(alone: ExpertsLab) -> None:
    spread = labs.experts(ranks=2, steps=100, balance=0.1)
    assert found(alone, EXPERT) > 2.5
    assert found(spread, EXPERT) < 1.5
    assert found(spread, RANK) < found(alone, RANK)
    assert found(alone, DROPPED) == found(spread, DROPPED) == 0


def test_the_same_settings_give_the_same_run(full: ExpertsLab) -> None:
    again = labs.experts(**FULL)
    assert (full.load.load == again.load.load).all()
    assert (full.load.traffic == again.load.traffic).all()
    assert len(full.load.steps) == 20


def test_every_step_shows_all_copies_and_what_each_rank_worked_on(full: ExpertsLab) -> None:
    assert (full.load.load.sum(axis=1) == 2048 * 2).all()  # before drops
    assert full.load.rank_load.sum() == pytest.approx((1 - full.load.dropped[-1]) * 2048 * 2)
    assert 0 < found(full, DROPPED) < 1


def test_a_rank_makes_the_calls_that_theory_predicts_in_its_order(alone: ExpertsLab, full: ExpertsLab) -> None:
    for lab in (alone, full):
        assert calls(lab) == [s.name for s in lab.timeline.predicted.of(0, COMM)]
        assert [name for name in calls(lab) if "all_to_all" in name] == [f"all_to_all {what}" for what in CARRIES]
    assert calls(full).count("all_gather") == 4  # the queues: their lengths, then who is in them and how much it counts


def test_on_one_rank_nothing_crosses_a_wire() -> None:
    lab = labs.experts(ranks=1, steps=20)
    assert found(lab, TRAFFIC) == lab.figures.predicted[TRAFFIC][0] == 0
    assert found(lab, RANK) == 1
    assert calls(lab) == []


def test_predicted_bytes_are_those_of_an_even_spread() -> None:
    v = Settings(experts=8, top_k=2, router="top-k", capacity="dropless", ranks=4)
    carried = [s for s in predicted(v).spans if s.name in ("all_to_all dispatch", "all_to_all combine")]
    away = 2048 * 2 * 3 / 4  # of the copies, three in four leave
    assert sum(s.nbytes for s in carried) == traffic(v) == 4 * away * 32 * 4  # twice each way, in rows of 32 float32


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"top_k": 2, "router": "switch"}, "the Switch router sends each token to one expert, not to 2"),
        ({"placement": "by load", "steps": 20}, "by the load of the first 50 steps, and these are 20"),
    ],
)
def test_impossible_settings_are_refused(values: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        labs.experts(**values)

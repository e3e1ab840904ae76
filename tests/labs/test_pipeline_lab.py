"""The lab of lessons 7 to 9: messages and stages that take time, in the prediction and on paced ranks."""

from collections.abc import Iterator
from typing import Any

import pytest

from course import labs
from course.labs import lab_pipeline, pool
from course.views.labels import number
from minipar.pipeline_parallel import build


@pytest.fixture(scope="module", autouse=True)
def nobody_there() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MINIPAR_ATTENDED", "0")
        monkeypatch.setattr(lab_pipeline, "SHOWN", 0.1)
        yield
    pool.close()


def makespans(**values: Any) -> tuple[float, float]:
    lab = labs.pipeline(ranks=2, microbatches=3, **values)
    assert lab.figures.found["makespan"][2] == "paced"
    return lab.figures.predicted["makespan"][0], lab.figures.found["makespan"][0]


def test_a_message_takes_the_time_of_the_link() -> None:
    """Paced actions keep to the model's moments: the run is never faster than predicted."""
    predicted, paced = makespans(schedule="gpipe", link=2.0)
    assert predicted == build("gpipe", 2, 3).simulate(comm=2).makespan == 3 * 4 + 2 * 2
    assert paced >= predicted - 1e-6


@pytest.mark.parametrize("typed", ["1 2", " 1,2.0 "])
def test_a_stage_costs_what_is_typed(typed: str) -> None:
    predicted, paced = makespans(schedule="gpipe", costs=typed)
    assert predicted == build("gpipe", 2, 3).simulate([1, 2], [1, 2], [1, 2]).makespan == 1 + 3 * 6 + 2
    assert paced >= predicted - 1e-6


def test_a_moved_slot_stays_when_costs_change_and_goes_with_another_schedule() -> None:
    lab = lab_pipeline.PipelineLab(ranks=2, microbatches=3, schedule="gpipe")
    assert lab.editor.move(1, 3, 1)  # B0 of the last rank at once
    edited = lab.editor.schedule
    lab._predict({**lab.values, "link": 1.0, "costs": "1 2"})
    assert lab.editor.schedule == edited
    assert lab.figures.predicted["makespan"][0] == edited.simulate([1, 2], [1, 2], [1, 2], comm=1).makespan
    lab._predict({**lab.values, "schedule": "1f1b"})
    assert lab.editor.schedule == build("1f1b", 2, 3)


def test_idle_time_is_one_row_where_both_shares_are_one_number_and_two_where_they_differ() -> None:
    def rows(schedule: str) -> list[str]:
        lab = labs.pipeline(ranks=2, microbatches=3, schedule=schedule)
        assert lab.figures.predicted.keys() == lab.figures.found.keys()
        return [name for name in lab.figures.predicted if "idle" in name]

    assert rows("1f1b") == ["idle"]
    assert rows("zb-v") == ["idle of own spans", "idle of the makespan"]


def test_the_picture_of_a_running_pipeline_has_the_lanes_of_the_finished_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[Any] = []
    monkeypatch.setattr(lab_pipeline.TimelineView, "feed", lambda self, events: fed.extend(events))
    labs.pipeline(ranks=2, microbatches=3, schedule="1f1b")
    spans = [span for event in fed if event.kind == "spans" for span in event.payload]
    assert {span.name for span in spans} == {"F", "B"}


def test_the_editor_and_the_curve_count_what_is_held_alike() -> None:
    lab = lab_pipeline.PipelineLab(ranks=2, microbatches=4, schedule="interleaved", chunks=3)
    held = [value for name, (value, _) in lab.figures.predicted.items() if name.startswith("most held")]
    assert lab.editor._content()[0]["held"] == [f"holds {number(value, '')}" for value in held]


def test_a_rank_that_lets_go_and_takes_up_at_one_moment_holds_no_less_in_between() -> None:
    """Rank 0 of 1F1B holds p from its warm-up until no forwards are left: B1 ends as F3 starts."""
    x, y = lab_pipeline.held_over_time(build("1f1b", 2, 6).simulate(), 0)
    assert x == sorted(x)
    assert y == [0, 0, 1, 1, 2, 2, 1, 1, 0]  # two up, and down as the last two backwards end


def test_stages_that_are_not_named_cost_one_and_a_chunk_its_share() -> None:
    predicted, _ = makespans(schedule="zb-v", costs=3)
    costs = [1.5, 0.5, 0.5, 0.5]
    assert predicted == build("zb-v", 2, 3).simulate(costs, costs, costs).makespan


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("1 two", "'two' is not a number; write a number for each stage, such as 1 1 1 2"),
        ("1 1 1", "there are 2 stages, and these are 3 numbers"),
        ("0", "0 is not from 0.25 to 8"),
        ("nan", "nan is not from 0.25 to 8"),
    ],
)
def test_costs_that_make_no_sense_are_refused_with_the_reason(typed: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"Pipeline: stage costs: {reason}"):
        labs.pipeline(ranks=2, costs=typed)

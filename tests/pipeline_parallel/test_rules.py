"""What a schedule table may not be, and what is said about it: the rule, the rank and the slot."""

from __future__ import annotations

import pickle

import pytest

from minipar.pipeline_parallel import NAMES, Action, Schedule, ScheduleError, build

BROKEN = {
    "typo": ("F0 F1 G3\nF0 F1 B0 B1", "text", 0, 2, "'G3' is not an action"),
    "no number": ("F0 F B0\nF0 B0", "text", 0, 1, "'F' is not an action"),
    "wrong label": ("rank 1: F0 B0\nF0 B0", "text", 0, None, "says rank 1"),
    "empty": ("# nothing\n\n", "text", None, None, "an empty table"),
    "missing": ("F0 F1 B0 B1\nF0 B0 F1", "missing", 1, None, "missing B1"),
    "missing forward": ("F0 B0\nB0", "missing", 1, 0, "B0 needs F0, which is missing"),
    "missing I": ("F0 W0\nF0 B0", "missing", 0, 1, "W0 needs I0, which is missing"),
    "a stage by a slip of the hand": (
        "F0@999999999999 B0@999999999999",
        "missing",
        None,
        None,
        "no rank does anything for stage 0",
    ),
    "missing stage": ("F0@0 B0@0\nF0@2 B0@2", "missing", None, None, "stage 1"),
    "doubled": ("F0 B0 F0\nF0 B0", "doubled", 0, 2, "F0 stands here a second time"),
    "order": ("B0 F0\nF0 B0", "order", 0, 0, "B0 comes before F0, which it needs"),
    "W before I": ("F0 W0 I0\nF0 B0", "order", 0, 1, "W0 comes before I0"),
    "W alone": ("F0 I0\nF0 B0", "missing", 0, None, "missing W0"),
    "B beside I": ("F0 I0 B0\nF0 B0", "mixed", 0, 2, "either one B, or an I and a W"),
    "B beside W": ("F0 B0 W0\nF0 B0", "mixed", 0, 2, "either one B, or an I and a W"),
    "two homes": ("F0@0 F0@1 B0@1 B0@0\nF1@1", "placement", 1, 0, "lives on rank 0"),
    "chunk order": ("F0@1 F0@0 B0@1 B0@0", "order", 0, 0, "F0@1 comes before F0@0"),
    "deadlock": ("F0 B0 F1 B1\nF1 B1 F0 B0", "deadlock", 0, 1, "rank 0 stands at B0 and waits for B0 from rank 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_first_broken_rule_is_named_with_its_place(case: str) -> None:
    table, rule, rank, slot, words = BROKEN[case]
    with pytest.raises(ScheduleError) as caught:
        Schedule.parse(table).validate()
    assert (caught.value.rule, caught.value.rank, caught.value.slot) == (rule, rank, slot)
    assert words in str(caught.value)
    assert slot is None or f"slot {slot}" in str(caught.value)


@pytest.mark.parametrize("case", BROKEN)
def test_an_illegal_table_is_not_simulated(case: str) -> None:
    with pytest.raises(ScheduleError):
        Schedule.parse(BROKEN[case][0]).simulate()


def test_an_action_on_another_ranks_stage_is_refused() -> None:
    s = build("1f1b", 2, 2)
    s.rows[0].append(Action("F", 1, 0))
    with pytest.raises(ScheduleError, match=r"rank 0, slot 4: .*lives on rank 1"):
        s.validate()


@pytest.mark.parametrize(
    ("action", "words"), [(Action("F", 0, 9), "microbatch 9"), (Action("F", 7, 0), "stage 7"), (Action("X", 0, 0), "kinds")]
)
def test_an_action_of_nothing_is_refused(action: Action, words: str) -> None:
    s = build("1f1b", 2, 2)
    s.rows[0][1] = action
    for check in (s.validate, s.simulate):
        with pytest.raises(ScheduleError, match="rank 0, slot 1") as caught:
            check()
        assert words in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_text_reads_back_as_the_same_schedule(name: str) -> None:
    s = build(name, 3, 5)
    back = Schedule.parse(str(s))
    assert (back.rows, back.placement, back.microbatches) == (s.rows, s.placement, s.microbatches)
    back.validate()


def test_a_table_may_carry_labels_and_comments() -> None:
    s = Schedule.parse("# two ranks\nrank 0: F0 B0   # first\n\n  F0 B0\n")
    assert s.rows == [[Action("F", 0, 0), Action("B", 0, 0)], [Action("F", 1, 0), Action("B", 1, 0)]]
    with pytest.raises(ScheduleError, match="missing F1"):
        Schedule.parse("F0 B0\nF0 B0", microbatches=2).validate()


def test_edits_return_a_new_schedule() -> None:
    s = build("1f1b", 2, 3)
    before = str(s)
    assert s.move(0, 0, 2).rows[0][2] == s.rows[0][0]
    assert s.delete(1, 0).rows[1] == s.rows[1][1:]
    assert str(s) == before
    s.move(0, 0, 1).validate()  # F1 before F0 on rank 0 alone is slow, but legal
    with pytest.raises(ScheduleError, match="missing F0"):
        s.delete(0, 0).delete(0, 1).validate()
    with pytest.raises(ScheduleError, match="no slot 99"):
        s.move(0, 99, 0)
    with pytest.raises(ScheduleError, match="no rank 5"):
        s.delete(5, 0)


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ScheduleError("order", "B0 comes first", 1, 2)))
    assert (str(error), error.rule, error.rank, error.slot) == ("rank 1, slot 2: B0 comes first", "order", 1, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1b", 4, 0), "microbatches=0"),
        (("1f1b", 4, 10**7), "80,000,000 actions"),
        (("1f1b", 0, 4), "ranks=0"),
        (("1f1b", 4, 2.5), "microbatches=2.5"),
        (("2f2b", 4, 4), "choose one of gpipe"),
        (("gpipe", 4, 4, 2), "only interleaved takes any number"),
        (("zb-v", 4, 4, 3), "2 chunk"),
        (("interleaved", 4, 4, 0), "chunks=0"),
    ],
)
def test_bad_arguments_get_a_reason(arguments: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(*arguments)


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({"forward": -1}, "forward of stage 0 is -1"),
        ({"weight_grad": [1, float("nan"), 1]}, "weight_grad of stage 1 is nan"),
        ({"comm": float("inf")}, "comm of stage 0 is inf"),
        ({"input_grad": [1, 2]}, "each of the 3 stages; these are 2"),
        ({"overrides": {Action("F", 0, 0): -3}}, r"overrides\[F0@0\] is -3"),
        ({"overrides": {Action("F", 0, 4): 3}}, r"overrides\[F4@0\]: this schedule has no such action"),
        ({"overrides": {Action("I", 0, 0): 3}}, r"overrides\[I0@0\]: this schedule has no such action"),
    ],
)
def test_bad_costs_get_a_reason(costs: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build("1f1b", 3, 4).simulate(**costs)


@pytest.mark.parametrize(
    ("options", "words"), [({"memory": 0.5}, "memory=0.5"), ({"kept": 0}, "kept=0"), ({"forward": -1}, "forward")]
)
def test_zb_auto_refuses_what_it_cannot_plan(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build("zb-auto", 2, 2, **options)
    with pytest.raises(ValueError, match="that is for zb-auto"):
        build("1f1b", 2, 2, **options)

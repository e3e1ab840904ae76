"""Sends and receives: complete, in the order of need, and without a hang even where nothing is buffered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipar.pipeline_parallel import NAMES, Action, Schedule, ScheduleError, Transfer, build
from minipar.pipeline_parallel.rules import check_rendezvous


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    p=st.integers(1, 6),
    m=st.integers(1, 13),
    costs=st.fixed_dictionaries({k: st.floats(0, 4) for k in ("forward", "input_grad", "weight_grad", "comm")}),
)
def test_every_schedule_lowers_to_programs_that_cannot_hang(name: str, p: int, m: int, costs: dict[str, float]) -> None:
    schedule = build(name, p, m)
    programs = schedule.lower(**costs)
    check_rendezvous(programs)
    assert [[i for i in program if isinstance(i, Action)] for program in programs] == schedule.rows
    assert _messages(programs, "send") == _messages(programs, "recv") == _crossings(schedule)
    for program in programs:
        _needed_values_come_first(schedule, program)


def _messages(programs: list, way: str) -> set[tuple[str, int, int]]:
    found = [(i.what, i.stage, i.microbatch) for program in programs for i in program if isinstance(i, Transfer) and i.way == way]
    assert len(found) == len(set(found))
    return set(found)


def _crossings(schedule: Schedule) -> set[tuple[str, int, int]]:
    pairs = [(s, s + 1) for s in range(schedule.stages - 1) if schedule.placement[s] != schedule.placement[s + 1]]
    return {(w, s, m) for a, b in pairs for w, s in (("F", a), ("B", b)) for m in range(schedule.microbatches)}


def _needed_values_come_first(schedule: Schedule, program: list) -> None:
    have: set[tuple[str, int, int]] = set()
    for i in program:
        if isinstance(i, Transfer):
            assert i.way == "recv" or (i.what, i.stage, i.microbatch) in have
            have.add((i.what, i.stage, i.microbatch))
            continue
        if i.kind == "F" and i.stage:
            assert ("F", i.stage - 1, i.microbatch) in have
        if i.kind in "BI" and i.stage + 1 < schedule.stages:
            assert ("B", i.stage + 1, i.microbatch) in have
        if i.kind != "W":
            have.add(("F" if i.kind == "F" else "B", i.stage, i.microbatch))


def test_a_program_that_leans_on_buffering_is_caught() -> None:
    """Both ranks send first: that works over gloo for as long as the messages are small."""
    send = lambda stage, peer: Transfer("send", "F", stage, 0, peer)  # noqa: E731
    recv = lambda stage, peer: Transfer("recv", "F", stage, 0, peer)  # noqa: E731
    check_rendezvous([[send(0, 1), recv(1, 1)], [recv(0, 0), send(1, 0)]])
    with pytest.raises(ScheduleError, match="rank 0 blocks in sending the activation of microbatch 0"):
        check_rendezvous([[send(0, 1), recv(1, 1)], [send(1, 0), recv(0, 0)]])


def test_a_receive_for_another_message_is_caught() -> None:
    programs = build("1f1b", 2, 2).lower()
    receives = [k for k, i in enumerate(programs[1]) if isinstance(i, Transfer) and i.way == "recv"]
    programs[1][receives[0]], programs[1][receives[1]] = programs[1][receives[1]], programs[1][receives[0]]
    with pytest.raises(ScheduleError, match="hang"):
        check_rendezvous(programs)


def test_receives_are_posted_before_the_work_they_overlap_with() -> None:
    """Rank 1 asks for the next activation before it computes on the one it has."""
    program = [str(i) for i in build("gpipe", 2, 3).lower()[1]]
    assert program.index("<F1@0:0") < program.index("F0@1")

"""The predicted timeline: costs that differ, messages that take time, the critical path."""

from __future__ import annotations

import pytest

from minipar.pipeline_parallel import NAMES, Action, build

TABLES = [(name, p, m) for name in NAMES for p, m in ((1, 2), (3, 4), (4, 9))]


def test_a_message_delays_only_the_action_that_waits_for_it() -> None:
    t = build("gpipe", 2, 3).simulate(forward=2, input_grad=1, weight_grad=1, comm=0.5)
    assert [s.start for s in t.of(1)][:3] == [2.5, 4.5, 6.5]
    assert t.makespan == 2 + 0.5 + 3 * 2 + 3 * 2 + 0.5 + 2


def test_costs_may_differ_by_stage_by_link_and_by_action() -> None:
    s = build("gpipe", 3, 1)
    t = s.simulate(forward=[1, 2, 3], input_grad=[0.5, 1, 2], weight_grad=0.5, comm=[10, 20], overrides={Action("F", 2, 0): 7})
    assert [x.end for x in t.of(2)] == [1 + 10 + 2 + 20 + 7, 40 + 2.5]
    assert t.makespan == 42.5 + 20 + 1.5 + 10 + 1


def test_a_message_within_a_rank_is_free() -> None:
    """The V's turn: the last rank passes a microbatch on to itself."""
    assert build("zb-v", 1, 1).simulate(comm=100).makespan == 6


@pytest.mark.parametrize(("name", "p", "m"), TABLES)
def test_every_action_starts_after_what_it_needs(name: str, p: int, m: int) -> None:
    s = build(name, p, m)
    t = s.simulate(forward=2, input_grad=3, weight_grad=1, comm=0.25)
    at = {(x.name, x.stage, x.microbatch): x for x in t.spans}
    assert len(at) == len(t.spans) == sum(map(len, s.rows))
    for x in t.spans:
        if x.name == "F" and x.stage:
            before = at["F", x.stage - 1, x.microbatch]
            assert x.start >= before.end + (0.25 if before.rank != x.rank else 0)
        if x.name in "BI":
            assert x.start >= at["F", x.stage, x.microbatch].end
        if x.name == "W":
            assert x.start >= at["I", x.stage, x.microbatch].end


@pytest.mark.parametrize(("name", "p", "m"), TABLES)
def test_the_critical_path_explains_the_makespan(name: str, p: int, m: int) -> None:
    """Actions one after the other, without a gap but for messages, that add up to the makespan."""
    t = build(name, p, m).simulate(forward=2, input_grad=3, weight_grad=1, comm=0.25)
    hops = sum(a.rank != b.rank for a, b in zip(t.critical, t.critical[1:], strict=False))
    assert t.critical[0].start == 0
    assert sum(x.seconds for x in t.critical) + 0.25 * hops == pytest.approx(t.makespan)


def test_nothing_is_simulated_of_an_empty_rank() -> None:
    s = build("1f1b", 1, 1)
    assert s.simulate(0, 0, 0).bubble == 0

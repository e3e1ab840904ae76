"""Bubbles and live activations against their closed forms, for unit costs: F = I = W = 1, so B = 2."""

from __future__ import annotations

import itertools
import math

import pytest

from minipar.pipeline_parallel import build
from minipar.pipeline_parallel.action import Action, makes, needs
from minipar.pipeline_parallel.schedule import Schedule

FEW = (1, 2, 3, 4, 7, 8, 16)  # the others are tried with the mark ``full``
RANKS = [p if p in FEW else pytest.param(p, marks=pytest.mark.full) for p in range(1, 17)]
MICROBATCHES = (1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 33, 64)  # below, at and above the ranks; primes


def close(a: float, b: float) -> bool:
    return abs(a - b) < 1e-9 * max(1.0, abs(b))


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_bubble_is_p_minus_1_full_steps(name: str, p: int) -> None:
    for m in MICROBATCHES:
        t = build(name, p, m).simulate()
        assert close(t.makespan, 3 * m + 3 * (p - 1)), (p, m)
        assert close(t.bubble, (p - 1) / (m + p - 1)), (p, m)


@pytest.mark.parametrize("p", RANKS)
def test_1f1b_holds_no_more_than_the_ranks_ahead(p: int) -> None:
    for m in MICROBATCHES:
        assert build("1f1b", p, m).simulate().peak_activations == [min(p - rank, m) for rank in range(p)]
        assert build("gpipe", p, m).simulate().peak_activations == [m] * p


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_interleaved_bubble_shrinks_with_the_chunks(p: int, v: int) -> None:
    """From m = p on, whether or not p divides m; below, the chunks of one microbatch wait for each other."""
    for m in (p, p + 1, 2 * p + 3, 3 * p, 61):
        t = build("interleaved", p, m, chunks=v).simulate(1 / v, 1 / v, 1 / v)
        assert close(t.makespan, 3 * m + 3 * (p - 1) / v), (p, m, v)


@pytest.mark.parametrize(("p", "m"), list(itertools.product((1, 2, 3, 5, 8), (1, 2, 3, 7))))
def test_interleaved_with_one_chunk_is_1f1b(p: int, m: int) -> None:
    assert build("interleaved", p, m, chunks=1).rows == build("1f1b", p, m).rows


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_interleaved_with_few_microbatches_takes_one_microbatchs_time_and_a_chunk_for_each_other(p: int, v: int) -> None:
    for m in {1, 2, 3, p - 1, p} & set(range(1, p + 1)):
        t = build("interleaved", p, m, chunks=v).simulate(1 / v, 1 / v, 1 / v)
        assert close(t.makespan, 3 * p + 3 * (m - 1) / v), (p, m, v)


@pytest.mark.parametrize("p", RANKS)
def test_zb_h1_fills_a_third_of_the_bubble_in_the_memory_of_1f1b(p: int) -> None:
    for m in MICROBATCHES:
        t = build("zb-h1", p, m).simulate()
        assert t.peak_activations == [min(p, m)] * p
        if m >= p:
            assert close(t.span, 3 * m + (p - 1)), (p, m)
            assert close(build("zb-h1", p, m).simulate(3, 2, 1).span, 6 * m + (p - 1) * (3 + 2 - 1)), (p, m)


@pytest.mark.parametrize("p", RANKS)
def test_zb_v_has_no_bubble_on_its_own_span_and_p_minus_1_chunks_on_the_makespan(p: int) -> None:
    for m in MICROBATCHES[::2]:
        t = build("zb-v", p, m).simulate()
        assert max(t.peak_activations) <= min(2 * p, 2 * m)
        if m >= 2 * p - 1:
            assert close(t.span, 6 * m), (p, m)
            assert close(t.makespan, 6 * m + (p - 1)), (p, m)
            assert close(t.bubble, 0)


@pytest.mark.parametrize("p", RANKS)
def test_dualpipe_v_bubble_as_published_when_its_pairs_run_as_one(p: int) -> None:
    """DeepSeek-V3 (arXiv:2412.19437) table 2 with PP = 2p: (PP/2 - 1)(F&B + B - 3W), and PP + 1 chunks held."""
    for m in (2 * p, 2 * p + 1, 3 * p + 2):
        schedule = build("dualpipe-v", p, m)
        for f, i, w in ((1, 1, 1), (2, 2, 1)):
            assert _paired_span(schedule, f, i, w) == 2 * m * (f + i + w) + (p - 1) * ((f + i + w) + (i + w) - 3 * w), (p, m)
            assert close(schedule.simulate(f, i, w).span, 2 * m * (f + i + w) + (p - 1) * (f + i - w)), (p, m)
        assert max(schedule.simulate().peak_activations) <= 2 * p + 1


@pytest.mark.parametrize("p", RANKS)
def test_v_schedules_with_few_microbatches_wait_for_the_rank_where_the_v_turns(p: int) -> None:
    """One microbatch goes down and up and back; each other keeps the last rank busy with two forwards and two input gradients.

    On the way back ZB-V does input gradients only, and owes the weights' to the end; DualPipe-V's second half is full backwards.
    """
    for m in {1, 2, 3, p - 1, p} & set(range(1, p + 1)):
        zb_v, dualpipe_v = build("zb-v", p, m), build("dualpipe-v", p, m)
        assert sum(map(len, zb_v.rows)) == 6 * p * m
        assert zb_v.simulate().makespan == 2 * p + 2 * p + 2 + 4 * (m - 1), (p, m)
        assert dualpipe_v.simulate().makespan == 2 * p + p + 2 * p + 1 + 4 * (m - 1), (p, m)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_zb_auto_with_twice_the_memory_has_no_bubble_left(p: int) -> None:
    t = build("zb-auto", p, 4 * p, memory=2 * p).simulate()
    assert close(t.bubble, 0)
    assert max(t.peak_activations) <= 2 * p - 1  # ZB-H2 of the zero-bubble paper, table 2
    assert close(build("zb-auto", p, 4 * p, memory=p).simulate().span, 12 * p + (p - 1))


@pytest.mark.parametrize("memory", [1, 2, 3.5, 4, 100, math.inf])
def test_zb_auto_keeps_to_its_memory_when_nothing_is_freed_before_w(memory: float) -> None:
    schedule = build("zb-auto", 4, 9, memory=memory, kept=1.0)
    schedule.validate()
    assert max(schedule.simulate().peak_activations) <= memory


def test_a_split_backward_holds_its_activations_until_w() -> None:
    table = "F0 I0 F1 I1 W0 W1"
    assert Schedule.parse(table).simulate().peak_activations == [2]
    assert Schedule.parse("F0 I0 W0 F1 I1 W1").simulate().peak_activations == [1]


def test_span_and_makespan_are_told_apart() -> None:
    """Zero bubble on each rank's own span still starts late on the last rank."""
    t = build("zb-v", 4, 8).simulate()
    assert t.makespan > t.span


def _paired_span(schedule: Schedule, f: int, i: int, w: int) -> float:
    """The longest own span when a forward with a backward behind it starts once both can, and ends with both done."""
    cost = {"F": f, "B": i + w, "I": i, "W": w}
    units = [_pairs(schedule, row) for row in schedule.rows]
    done: dict[tuple[str, int, int], float] = {}
    free, first = [0.0] * schedule.ranks, [-1.0] * schedule.ranks
    while any(units):
        for rank, row in enumerate(units):
            while row and all((*n, a.microbatch) in done for a in row[0] for n in needs(a, schedule.stages)):
                unit = row.pop(0)
                ready = [done[(*n, a.microbatch)] for a in unit for n in needs(a, schedule.stages)]
                start = max([free[rank], *ready])
                first[rank] = start if first[rank] < 0 else first[rank]
                free[rank] = start + sum(cost[a.kind] for a in unit)
                done |= {(makes(a) or "W", a.stage, a.microbatch): free[rank] for a in unit}
    return max(end - start for end, start in zip(free, first, strict=True))


def _pairs(schedule: Schedule, row: list[Action]) -> list[list[Action]]:
    units: list[list[Action]] = []
    for action in row:
        before = units[-1] if units else []
        goes = len(before) == 1 and before[0].kind == "F" and action.kind == "B" and before[0].stage != action.stage
        if goes and before[0].microbatch != action.microbatch:
            before.append(action)
        else:
            units.append([action])
    return units

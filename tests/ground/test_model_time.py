"""Model time: whoever in minipar reads the clock reads the modelled one, and afterwards the machine's again."""

from __future__ import annotations

import pkgutil
import sys
import time
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import nn

import minipar
from minipar import Mesh, comm, pacing, trace
from minipar.data import Batch
from minipar.hardware import Cluster, Device, Link
from minipar.model_time import model_time
from minipar.pipeline_parallel import build
from minipar.pipeline_parallel.run import Pipeline, actions_of
from minipar.trace import Timeline

INSTANT = Link("instant", 0.0, 1e30)
HARDWARE = Cluster("instant", Device("instant", 1e30, 1e12, 1e30), INSTANT, INSTANT)


def clocks() -> dict[str, object]:
    """The clock of every module that has one."""
    names = [module.name for module in pkgutil.walk_packages(minipar.__path__, "minipar.") if not module.name.endswith("__main__")]
    found = {name: vars(import_module(name)).get("now") for name in names}
    return {name: clock for name, clock in found.items() if clock is not None}


def test_every_module_of_minipar_reads_the_modelled_clock_and_then_the_machines_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before, late = clocks(), ModuleType("minipar.late")
    assert {"minipar.trace", "minipar.pacing", "minipar.pipeline_parallel.run", "minipar.pipeline_parallel.paced"} <= set(before)
    assert set(before.values()) == {time.monotonic}
    with model_time(HARDWARE, 0) as clock:
        assert {id(read) for read in clocks().values()} == {id(trace.now)}
        assert trace.now() == clock.time
        late.now = trace.now  # type: ignore[attr-defined]  # as one that is imported in here takes it
        monkeypatch.setitem(sys.modules, "minipar.late", late)
    assert set(clocks().values()) == {late.now} == {time.monotonic}


def test_a_rank_paced_before_has_a_clock_by_the_machines_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minipar.pacing.queued", lambda _: 7.0)  # seconds, so far
    pacing.pace(HARDWARE, 3)
    try:
        before = pacing.current().clock()
        with model_time(HARDWARE, 3):
            pass
        assert (pacing.current().cluster, pacing.current().rank) == (HARDWARE, 3)
        assert pacing.current().clock() >= before
    finally:
        pacing.pace(None)


def paced_pipeline() -> tuple[Timeline, float]:
    model = nn.Sequential(*(nn.Linear(3, 3, dtype=torch.float64) for _ in range(2)))
    schedule, x = build("1f1b", 2, 4), torch.ones(4, 3, dtype=torch.float64)
    pipe = Pipeline(model, schedule, Mesh(pp=2), loss_sum=lambda y, _: y.sum(), pace={"F": 1.0, "B": 2.0})
    batch = Batch(x, x, total=4)
    comm.barrier()
    with model_time(HARDWARE, comm.world().rank) as clock:
        pipe.accumulate(batch)
    return actions_of(pipe.timeline()), clock.time


def test_a_pipeline_with_a_pace_of_its_own_keeps_to_model_time(ranks) -> None:
    expected = build("1f1b", 2, 4).simulate(forward=1, input_grad=2, weight_grad=0)
    (timeline, first), (_, second) = ranks(2).run(paced_pipeline)
    assert timeline.makespan == pytest.approx(expected.makespan, rel=1e-6)
    assert max(first, second) == pytest.approx(expected.makespan, rel=1e-6)

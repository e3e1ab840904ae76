"""Paced ranks that wake up late: the model's times stay the model's."""

import pytest

from minipar import pacing
from minipar.hardware import PRESETS, Cluster, Link
from minipar.pacing import Pacer

LINK = Link("slow", latency=0.02, bandwidth=1e9)
HARDWARE = Cluster("slow", PRESETS["cpu"].device, LINK, LINK, ranks_per_node=1)


class Host:
    """A clock that only moves when told, on a machine that oversleeps."""

    def __init__(self, oversleeps: float) -> None:
        self.time, self.oversleeps = 100.0, oversleeps

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds + self.oversleeps


@pytest.fixture
def host(monkeypatch):
    machine = Host(oversleeps=0.003)
    monkeypatch.setattr(pacing, "now", machine.now)
    monkeypatch.setattr(pacing.time, "sleep", machine.sleep)
    yield machine
    pacing.pace(None)


def test_late_wake_ups_do_not_add_up(host):
    pacer = Pacer(HARDWARE, 0)
    for _ in range(50):
        pacer.wait(host.now(), [pacer.send(1, 0)])
    assert host.now() - 100.0 == pytest.approx(50 * 0.02 + 0.003)  # late once, not fifty times


def test_own_work_between_two_transfers_counts_in_full(host):
    pacer = Pacer(HARDWARE, 0)
    pacer.wait(host.now(), [pacer.send(1, 0)])
    host.time += 0.5
    start, _ = pacer.send(1, 0)
    assert start == pytest.approx(100.0 + 0.02 + 0.5)


def test_coming_late_to_a_transfer_that_is_over_is_not_lateness_of_the_machine(host):
    pacer = Pacer(HARDWARE, 0)
    pair = pacer.send(1, 0)
    host.time += 0.5  # work, with the transfer hidden behind it
    pacer.wait(host.now(), [pair])
    assert pacer.clock() == pytest.approx(100.5)


def test_a_machine_slower_than_the_model_is_not_hidden(host):
    pacer = Pacer(HARDWARE, 0)
    pair = pacer.send(1, 0)
    began = host.now()
    host.time += 0.5  # the real transfer took that long
    pacer.wait(began, [pair])
    assert host.now() - pacer.clock() == pytest.approx(0.02)  # at most what the operation should have taken


def test_paced_work_makes_up_for_a_late_wake_up_too(host):
    pacing.pace(HARDWARE, 0)
    for _ in range(10):
        with pacing.compute(seconds=0.01):
            host.time += 0.004
    assert host.now() - 100.0 == pytest.approx(10 * 0.01 + 0.003)
    with pacing.compute(seconds=0.01):
        host.time += 0.5  # slower than the model: what it took
    assert host.now() - 100.0 == pytest.approx(10 * 0.01 + 0.003 + 0.5)

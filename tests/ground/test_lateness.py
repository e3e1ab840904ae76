"""Paced ranks on a machine that is late, slow or busy: paced times stay the model's, and what a rank itself does still counts."""

import os

import pytest

from minipar import pacing, processor, trace
from minipar.hardware import PRESETS, Cluster, Link
from minipar.pacing import STALL, Pacer
from minipar.trace import tracer

LINK = Link("slow", latency=0.02, bandwidth=1e9)
HARDWARE = Cluster("slow", PRESETS["cpu"].device, LINK, LINK, ranks_per_node=1)


class Host:
    """A clock that only moves when told, on a machine that oversleeps."""

    def __init__(self, oversleeps: float) -> None:
        self.time, self.queued, self.oversleeps = 100.0, 7.0, oversleeps

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds + self.oversleeps


@pytest.fixture
def host(monkeypatch):
    machine = Host(oversleeps=0.003)
    monkeypatch.setattr(pacing, "now", machine.now)
    monkeypatch.setattr(pacing, "queued", lambda _: machine.queued)
    monkeypatch.setattr(pacing.time, "sleep", machine.sleep)
    yield machine
    pacing.pace(None)


def transfer(pacer: Pacer, host: Host, really: float, sender_is_late: float = 0.0) -> None:
    """Send a message, for which this machine takes so many seconds, and wait for it."""
    with pacer:
        pair = pacer.send(1, 0)
        host.time += really
        pacer.excuse(sender_is_late)
        pacer.wait([pair])


def test_late_wake_ups_do_not_add_up(host):
    pacer = Pacer(HARDWARE, 0)
    for _ in range(50):
        pacer.wait([pacer.send(1, 0)])
    assert pacer.clock() - 100.0 == pytest.approx(50 * 0.02)
    assert host.now() - 100.0 == pytest.approx(50 * 0.02 + 0.003)  # late once, not fifty times


def test_own_work_between_two_transfers_counts_in_full(host):
    pacer = Pacer(HARDWARE, 0)
    pacer.wait([pacer.send(1, 0)])
    host.time += 0.5
    start, _ = pacer.send(1, 0)
    assert start == pytest.approx(100.0 + 0.02 + 0.5)


def test_coming_late_to_a_transfer_that_is_over_is_not_lateness_of_the_machine(host):
    pacer = Pacer(HARDWARE, 0)
    pair = pacer.send(1, 0)
    host.time += 0.5  # work, with the transfer hidden behind it
    pacer.wait([pair])
    assert pacer.clock() == pytest.approx(100.5)


def test_a_machine_slower_than_the_link_takes_longer_and_paced_times_stay_the_models(host):
    pacer = Pacer(HARDWARE, 0)
    for _ in range(50):
        transfer(pacer, host, really=0.05)
    assert pacer.clock() - 100.0 == pytest.approx(50 * 0.02)
    assert host.now() - 100.0 == pytest.approx(50 * 0.05)


def test_a_late_rank_waits_that_much_less_later_on(host):
    pacer = Pacer(HARDWARE, 0)
    transfer(pacer, host, really=0.05)
    for _ in range(3):
        transfer(pacer, host, really=0.001)
    assert host.now() - 100.0 == pytest.approx(4 * 0.02 + 0.003)


def test_a_rank_that_stops_in_a_call_is_seen_to(host):
    pacer = Pacer(HARDWARE, 0)
    transfer(pacer, host, really=1.0)
    assert pacer.clock() - 100.0 == pytest.approx(1.0 - STALL)


def test_who_waits_for_a_late_rank_has_not_stopped(host):
    pacer = Pacer(HARDWARE, 0)
    transfer(pacer, host, really=1.0, sender_is_late=0.95)
    assert pacer.clock() - 100.0 == pytest.approx(0.02)
    transfer(pacer, host, really=1.0)  # this time nobody was late but this machine
    assert pacer.clock() - 100.0 == pytest.approx(0.02 + 1.0 - STALL)


def test_to_queue_for_a_processor_is_no_work(host):
    pacer = Pacer(HARDWARE, 0)
    host.time += 0.05
    host.queued += 0.04
    assert pacer.clock() - 100.0 == pytest.approx(0.01)
    transfer(pacer, host, really=0.001)
    assert pacer.clock() - 100.0 == pytest.approx(0.03)
    assert host.now() - 100.0 == pytest.approx(0.051)  # it was due at 0.03: nothing was left to wait


def test_paced_work_makes_up_for_a_late_wake_up_too(host):
    pacing.pace(HARDWARE, 0)
    for _ in range(10):
        with pacing.compute(seconds=0.01):
            host.time += 0.004
    assert host.now() - 100.0 == pytest.approx(10 * 0.01 + 0.003)
    with pacing.compute(seconds=0.01):
        host.time += 0.5  # slower than the model: what it took
    assert host.now() - 100.0 == pytest.approx(10 * 0.01 + 0.003 + 0.5)


def test_paced_work_of_a_late_rank_lasts_as_long_as_the_model_says(host):
    pacing.pace(HARDWARE, 0)
    transfer(pacing.current(), host, really=0.09)
    with tracer.watch() as spans, tracer.span("F"), pacing.compute(seconds=0.01):
        host.time += 0.004
    assert [s.start - 100.0 for s in spans] == pytest.approx([0.02])
    assert [s.seconds for s in spans] == pytest.approx([0.01])


def test_spans_are_on_the_paced_clock_and_then_on_the_hosts_again(host, monkeypatch):
    monkeypatch.setattr(trace, "now", lambda: 999.0)
    pacing.pace(HARDWARE, 0)
    transfer(pacing.current(), host, really=0.05)
    with tracer.watch() as spans:
        with tracer.span("work"):
            host.time += 0.25
        pacing.pace(None)
        with tracer.span("unpaced"):
            pass
    assert spans[0].start - 100.0 == pytest.approx(0.02)
    assert spans[0].seconds == pytest.approx(0.25)
    assert spans[1].start == 999.0


def test_two_threads_that_look_at_once_do_not_put_the_clock_ahead_of_the_hosts(host, monkeypatch):
    pacer = Pacer(HARDWARE, 0)

    def interleaved(_: object) -> float:
        monkeypatch.setattr(pacing, "queued", lambda _: host.queued)
        assert pacer.clock() == pytest.approx(100.5)  # as another thread would, in the middle of it
        return host.queued

    host.time += 0.5
    monkeypatch.setattr(pacing, "queued", interleaved)
    assert pacer.clock() == pytest.approx(100.5)


def test_an_interrupt_that_ends_a_wait_leaves_no_time_that_has_not_been(host, monkeypatch):
    def interrupted(_: float) -> None:
        host.time += 0.25
        raise KeyboardInterrupt

    monkeypatch.setattr(pacing.time, "sleep", interrupted)
    pacing.pace(HARDWARE, 0)

    def work() -> None:
        with tracer.span("work"):
            host.time += 0.5
            with pacing.call(), tracer.blocked():
                pacing.current().wait([(100.5, 105.5)])

    with tracer.watch() as spans, pytest.raises(KeyboardInterrupt):
        work()
    assert [s.seconds for s in spans] == pytest.approx([0.5, 0.0])
    assert pacing.current().clock() - 100.0 == pytest.approx(0.75)


@pytest.mark.parametrize(("text", "seconds"), [("5000000000 2500000000 3\n", 2.5), (None, 0.0)])
def test_time_in_the_queue_is_read_where_the_system_counts_it(tmp_path, monkeypatch, text, seconds):
    stat = tmp_path / "schedstat"
    if text:
        stat.write_text(text)
    monkeypatch.setattr(processor, "SCHEDSTAT", str(stat))
    assert processor.queued(processor.Queue()) == seconds


def test_a_forked_process_counts_what_it_queues_itself(monkeypatch, tmp_path):
    stat = tmp_path / "schedstat"
    monkeypatch.setattr(processor, "SCHEDSTAT", str(stat))
    stat.write_text("1 2000000000 3")
    pacing.pace(HARDWARE, 0)
    try:
        stat.unlink()
        stat.write_text("1 5000000000 3")  # that of the other process: another file
        child = os.fork()
        if child == 0:
            try:
                os._exit(int(processor.queued(pacing.current()._queue)))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert processor.queued(pacing.current()._queue) == 2
    finally:
        pacing.pace(None)

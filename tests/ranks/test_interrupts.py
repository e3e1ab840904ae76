"""An interrupt that comes while the ranks are only being told what to do."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from course.ranks import RankError, RanksInterrupted
from course.ranks.hub import Hub


@pytest.mark.parametrize("told", [False, True])
def test_an_interrupt_while_the_ranks_are_being_told_ends_the_run(ranks, monkeypatch, told):
    """All ranks hear of a run, or none: it is the reader thread that tells them, and only the main thread is interrupted."""
    pool = ranks(2)
    pids, real = pool.pids, Hub.post

    def interrupted(hub, work):
        monkeypatch.undo()
        if told:
            real(hub, work)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Hub, "post", interrupted)
    with pytest.raises(RanksInterrupted, match="sleep"):
        pool.run(time.sleep, 60)
    assert pool.run(dist.get_rank) == [0, 1]
    assert pool.pids == pids


def _struck_on_rank_1() -> None:
    if dist.get_rank() == 1:
        signal.raise_signal(signal.SIGINT)  # as `kill -INT` does
    time.sleep(60)


def test_a_signal_that_interrupts_one_rank_is_that_rank_s_error_and_the_pool_goes_on(ranks):
    pool = ranks(2)
    with pytest.raises(RankError, match="rank 1 was interrupted by SIGINT") as caught:
        pool.run(_struck_on_rank_1)
    assert caught.value.rank == 1
    assert "_struck_on_rank_1" in str(caught.value)
    assert pool.run(dist.get_rank) == [0, 1]


def test_ranks_are_idle_only_when_every_interrupt_has_reached_them(ranks, monkeypatch):
    """One that is still under way would hit the next run."""
    pool = ranks(2)
    server, done = pool._pool.server, []
    for name in ("signal", "await_delivery"):
        real = getattr(server, name)
        monkeypatch.setattr(server, name, lambda *args, name=name, real=real: (done.append(name), real(*args)))
    run = pool.start(time.sleep, 60)
    run.stop()
    assert done[0] == "signal"
    assert done[-1] == "await_delivery"


def test_a_fork_server_answers_when_the_signals_before_are_delivered(ranks):
    server = ranks(1)._pool.server
    os.kill(server._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as one:
        waiting = one.submit(server.await_delivery, 60)
        try:
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)  # it cannot answer while it is stopped
        finally:
            os.kill(server._process.pid, signal.SIGCONT)
        assert waiting.result(timeout=60) is None

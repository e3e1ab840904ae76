"""An interrupt that comes while the ranks are only being told what to do."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

import course.ranks.pool
from course.ranks import RankError, RanksInterrupted, RanksStopped, recovery
from course.ranks.hub import Hub, send_to_all
from course.ranks.inside import Interrupt
from course.ranks.pool import Pool
from minipar import trace
from tests.ranks.moments import until


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("size", [0, 100_000])
def test_an_interrupt_while_the_ranks_are_being_told_ends_the_run(ranks, monkeypatch, told, size):
    """All ranks hear of a run, or none; either way they stay the same processes. Large frames leave by the reader thread."""
    pool = ranks(2)
    pool.run(int)  # they live, whatever a test before has ended
    pids = pool.pids
    place, name = (Hub, "post") if size else (course.ranks.pool, "send_to_all")
    real = getattr(place, name)

    def interrupted(*args):
        monkeypatch.undo()
        if told:
            real(*args)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(place, name, interrupted)
    with pytest.raises(RanksInterrupted, match="_sleep"):
        pool.run(_sleep, bytes(size))
    assert pool.run(dist.get_rank) == [0, 1]
    assert pool.pids == pids


def _sleep(_: bytes) -> None:
    time.sleep(60)


def test_an_interrupt_ends_the_run_that_was_there_when_it_came_and_no_later_one(ranks):
    """The fork server tells of it late, when a learner has started the next cell at once."""
    pool, handle = ranks(2), ranks(2)._pool.server._handle
    pool.run(int)
    before = trace.now()
    run = pool.start(_sleep, b"")
    pool._pool.hub.post(lambda: handle({"event": "interrupt", "time": before}))
    done = threading.Event()
    pool._pool.hub.post(done.set)
    assert done.wait(60)
    assert not pool._pool.busy_until_recovered
    pool._pool.hub.post(lambda: handle({"event": "interrupt", "time": trace.now()}))
    with pytest.raises(RanksStopped, match="was interrupted"):
        run.result()
    assert pool.run(dist.get_rank) == [0, 1]


def test_a_fork_server_says_when_an_interrupt_came(ranks):
    pool, moments = ranks(1), SimpleQueue()
    pool.run(int)
    server = pool._pool.server
    server.on_interrupt.add(moments.put)
    try:
        before = trace.now()
        os.kill(server._process.pid, signal.SIGINT)
        assert before <= moments.get(timeout=60) <= trace.now()
    finally:
        server.on_interrupt.discard(moments.put)


def test_a_rank_that_is_gone_does_not_keep_the_others_from_being_told():
    pairs = [socket.socketpair() for _ in range(3)]
    pairs[1][0].close()
    told: list[int] = []
    send_to_all([SimpleNamespace(sock=ours) for ours, _ in pairs], [b"frame"], told)
    assert told == [5, 5]
    assert [theirs.recv(100) for _, theirs in (pairs[0], pairs[2])] == [b"frame"] * 2


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


class _Swallows:
    def __del__(self) -> None:
        if (after := next(_ends)) == 0:
            raise Interrupt
        raise RuntimeError(f"destroyed {after}")


_ends = itertools.count()


def _end_two() -> None:
    for _ in range(2):
        _Swallows()


def test_an_interrupt_that_comes_while_an_object_ends_is_not_told(ranks, capsys):
    """It is sent again. (What else a destructor raises is.)"""
    ranks(1).run(_end_two)
    told = capsys.readouterr().err
    assert "RuntimeError: destroyed 1" in told
    assert "Interrupt" not in told


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
    pool = ranks(1)
    pool.run(int)
    server = pool._pool.server
    os.kill(server._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as one:
        waiting = one.submit(server.await_delivery, 60)
        try:
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)  # it cannot answer while it is stopped
        finally:
            os.kill(server._process.pid, signal.SIGCONT)
        assert waiting.result(timeout=60) is None


def test_an_interrupt_at_any_call_on_the_way_to_the_ranks_leaves_them_ready(ranks):
    """Wherever a Python function begins there, an interrupt may come: in a lock of Python code, before it lets go."""
    pool = ranks(2)
    pool.run(int)
    pids, free = pool.pids, pool._pool.lock
    for call in itertools.count():
        strikes = _Strikes(call, Pool.launch.__code__)
        with contextlib.suppress(KeyboardInterrupt), strikes:
            pool.run(int)
        if not strikes.struck:
            break
        with ThreadPoolExecutor(1) as another:
            assert another.submit(_can_be_had, free).result(), f"held for ever after {strikes.struck}"
        assert pool.run(dist.get_rank) == [0, 1], strikes.struck
    assert call > 10
    assert pool.pids == pids


def _can_be_had(lock: Any) -> bool:
    return lock.acquire(timeout=20) and lock.release() is None


class _Strikes:
    """Raises ``KeyboardInterrupt`` at the beginning of one of the Python functions that a certain one calls, directly or not."""

    def __init__(self, number: int, within: CodeType) -> None:
        self.left, self.within, self.depth, self.struck = number, within, 0, ""

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (self.depth or frame.f_code is self.within):
            self.depth += 1
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                self.struck = f"{frame.f_code.co_qualname} in {frame.f_code.co_filename}"
                raise KeyboardInterrupt
        elif event == "return" and self.depth:
            self.depth -= 1


@pytest.mark.parametrize("place", ["start", "_join", "_await"])
def test_an_interrupt_while_a_dead_rank_is_started_again_is_mended_by_the_next_run(ranks, monkeypatch, place):
    pool = ranks(2)
    pool.run(int)
    os.kill(pool.pids[1], signal.SIGKILL)
    until(lambda: pool.states()[1].state == "dead")

    def interrupted(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(recovery, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.run(dist.get_rank)
    assert pool.run(dist.get_rank) == [0, 1]

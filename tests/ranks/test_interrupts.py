"""An interrupt that comes while the ranks are only being told what to do."""

from __future__ import annotations

import signal
import time

import pytest
import torch.distributed as dist

from course.ranks import RankError, RanksInterrupted
from course.ranks.hub import Channel, interrupts_held


def test_an_interrupt_while_the_ranks_are_being_told_ends_the_run(ranks, monkeypatch):
    pool = ranks(2)
    real = Channel.send_packed

    def interrupted(channel, frame):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)  # before any rank has heard of it
        real(channel, frame)

    monkeypatch.setattr(Channel, "send_packed", interrupted)
    with pytest.raises(RanksInterrupted, match="sleep"):
        pool.run(time.sleep, 60)
    assert pool.run(dist.get_rank) == [0, 1]


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


def test_a_held_interrupt_comes_after_the_lines_that_hold_it():
    done = []

    def held() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        held()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

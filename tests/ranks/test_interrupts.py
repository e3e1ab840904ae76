"""An interrupt that comes while the ranks are only being told what to do."""

from __future__ import annotations

import signal
import time

import pytest
import torch.distributed as dist

from course.ranks import RanksInterrupted
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

"""A rank is given up for what it does with its chances, not for what a busy machine keeps from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from course.ranks import turns
from course.ranks.turns import LOOK, Turns, activity
from tests.ranks.moments import until


@pytest.mark.parametrize(
    ("seen", "late"),
    [
        ([(True, 5)] * 30, True),  # it sleeps on
        ([(False, tick) for tick in range(30)], True),  # it computes on
        ([(False, 5)] * 30, False),  # it waits for a processor
        ([(False, 5)] * 2000, True),  # for ever
    ],
)
def test_waits_for_a_processor_do_not_count(monkeypatch, seen, late):
    looks = iter(seen)
    monkeypatch.setattr(turns, "activity", lambda pid: next(looks))
    rank = Turns()
    for _ in seen:
        rank.look(7)
    assert rank.over(7, 20 * LOOK) is late


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the states of threads are Linux's")
def test_a_sleeping_or_stopped_process_is_told_from_one_that_computes():
    child = subprocess.Popen([sys.executable, "-c", "input()\nwhile True: pass"], stdin=subprocess.PIPE)
    try:
        until(lambda: activity(child.pid)[0] and activity(child.pid)[1] > 0)
        child.stdin.write(b"\n")
        child.stdin.flush()
        until(lambda: not activity(child.pid)[0])
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: activity(child.pid)[0])
    finally:
        child.kill()
        child.communicate()
    assert activity(child.pid) == (True, 0)

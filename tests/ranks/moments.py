"""Moments to wait for, so that no test depends on how long anything takes on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

LIMIT = 60  # seconds; a test that needs them has failed


def until(condition: Callable[[], Any], what: str = "it") -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {LIMIT} s"
        time.sleep(0.01)


def until_waiting(*others: int) -> None:
    """In a rank: wait until each of these other ranks sits in a communication call."""
    from course.ranks.inside import inside

    here = inside()
    assert here is not None
    until(lambda: all(here.slots.read(rank).state == "waiting" for rank in others))


def here() -> None:
    """In a rank: say that this place is reached; see ``until_all_are_here``."""
    from course.ranks import emit

    emit("here", None)


def until_all_are_here(run: Any) -> None:
    """Wait until every rank has called ``here()``."""
    until(lambda: len(run.events("here")) == run.ranks)


def living(pids: list[int]) -> list[psutil.Process]:
    """Those of these processes that are still there."""
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found

"""How long a rank has had the chance to react. On a busy machine that is less than the time that has passed."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

LOOK = 0.05  # seconds between two looks
MOST = 20  # times the limit: after so much real time the chances do not matter any more


class Turns:
    """Counts looks at which a rank slept or computed on, and leaves out those at which it only waited for a processor."""

    def __init__(self) -> None:
        self._had: Counter[int] = Counter()
        self._looks: Counter[int] = Counter()
        self._ticks: dict[int, int] = {}

    def look(self, pid: int) -> None:
        """Once in ``LOOK`` seconds."""
        asleep, ticks = activity(pid)
        self._looks[pid] += 1
        self._had[pid] += asleep or ticks != self._ticks.get(pid)
        self._ticks[pid] = ticks

    def over(self, pid: int, seconds: float) -> bool:
        """Whether the rank could have reacted for longer than ``seconds``."""
        return self._had[pid] * LOOK > seconds or self._looks[pid] * LOOK > MOST * seconds


def activity(pid: int) -> tuple[bool, int]:
    """Whether all threads of a process sleep or are stopped, and the ticks it computed; ``(True, 0)`` where nobody can tell."""
    asleep, ticks = True, 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            state, *fields = (thread / "stat").read_text().rpartition(")")[2].split()
            asleep = asleep and state not in "RD"  # runs or could run; waits for the disk
            ticks += int(fields[10]) + int(fields[11])  # user and system time
    return asleep, ticks

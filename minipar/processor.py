"""How long a thread stood in the queue for a processor: ready to run, while this machine served other threads.

Linux counts it (``schedstats``). Where that is not to be had, nobody is taken to have queued.
"""

from __future__ import annotations

import contextlib
import os

SCHEDSTAT = "/proc/thread-self/schedstat"  # nanoseconds that the thread ran, nanoseconds that it queued, how often it ran


class Queue:
    """Of the thread that makes this object."""

    _file: int | None = None

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            self._file = os.open(SCHEDSTAT, os.O_RDONLY)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def seconds(self) -> float:
        """Seconds that the thread has queued in its life."""
        return 0.0 if self._file is None else int(os.pread(self._file, 80, 0).split()[1]) * 1e-9


def queued(queue: Queue) -> float:
    """Seconds so far. In model time nobody queues: there this is another function, as ``trace.now`` is."""
    return queue.seconds()

"""The second thread of every rank: it ends the rank with its kernel, streams events, and answers while the rank is blocked."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from course.ranks import wire
from course.ranks.report import frames_of_stack

BUSY, RESTING = 0.02, 0.1  # seconds between two flushes while a function runs, and between runs


class Guard(threading.Thread):
    """``sock`` is the lifeline: when the kernel is gone it closes, and the rank goes too.

    A blocked collective releases the GIL, so this thread still runs; ``flush`` sends what was traced and printed.
    """

    def __init__(self, sock: socket.socket, flush: Callable[[], bool], answer: Callable[[], dict[str, Any]]) -> None:
        super().__init__(name="minipar-guard", daemon=True)
        self._sock, self._flush, self._answer = sock, flush, answer
        self._reader = wire.Reader(sock)
        self._zygote = os.getppid()

    def run(self) -> None:
        busy = True
        while True:
            ready, _, _ = select.select([self._sock], [], [], BUSY if busy else RESTING)
            if os.getppid() != self._zygote:
                leave()
            try:
                busy = self._flush()  # before an answer: who asks may end this rank when it has one
            except OSError:  # nobody reads any more
                leave()
            except Exception:  # something traced cannot be sent: say so, and stay on guard
                traceback.print_exc()
            if ready:
                self._reply()

    def _reply(self) -> None:
        try:
            frame = self._reader.receive()
            wire.send(self._sock, wire.ANSWER, {"ask": frame.meta, **self._answer()})
        except (EOFError, OSError):
            leave()


def leave() -> None:
    """End this rank and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


def main_stack() -> tuple[Any, ...]:
    """The stack of the main thread, outermost call first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frames_of_stack(frame)

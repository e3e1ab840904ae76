"""One rank's process, as the kernel knows it: its sockets and pipes, and what is known of its state."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from course.ranks import wire
from course.ranks.hub import Channel, Pipe
from course.ranks.report import Failure
from course.ranks.run import text_decoder

if TYPE_CHECKING:
    from course.ranks.pool import Pool


class Member:
    """Made before the fork; ``forked`` completes it. Everything else happens in the reader thread."""

    def __init__(self, pool: Pool, rank: int) -> None:
        self.pool, self.rank = pool, rank
        self.pid = 0
        self.state = "starting"  # "starting", "ready", "left", "dead"
        self.info: dict[str, Any] = {}
        self.failure: Failure | None = None  # of joining, or of the current run
        self.finished = True  # with the current run
        self.joined = True
        self.killed = False  # by us
        self.status, self.died = 0, 0.0
        self.last_words = ""  # of a dead rank: the communication call it made last
        self.tally: tuple[Any, ...] = ()
        self.answer: dict[str, Any] | None = None
        messages, their_messages = socket.socketpair()
        guard, their_guard = socket.socketpair()
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        self._theirs = (their_messages, their_guard)
        self._their_pipes = (their_out, their_err)
        self.messages = Channel(pool.hub, messages, partial(pool.heard, self))
        self.guard = Channel(pool.hub, guard, self._answered)
        self.pipes = [self._pipe(out, "stdout"), self._pipe(err, "stderr")]

    @property
    def fds(self) -> list[int]:
        return [self._theirs[0].fileno(), self._theirs[1].fileno(), *self._their_pipes]

    def forked(self, pid: int) -> None:
        """Any thread: the rank has its own copies of the descriptors now."""
        self.pid = pid
        self.close_theirs()
        self.pool.server.when_dead(pid, self._died)

    def close_theirs(self) -> None:
        for sock in self._theirs:
            sock.close()
        for fd in self._their_pipes:
            os.close(fd)
        self._theirs, self._their_pipes = (), ()  # type: ignore[assignment]

    @property
    def alive(self) -> bool:
        return self.state != "dead"

    @property
    def is_ready(self) -> bool:
        """Between two runs: False for one that is dead or dying, and where an interrupt came while the ranks were started again."""
        return self.state == "ready" and not self.killed

    def _pipe(self, fd: int, stream: str) -> Pipe:
        decoder = text_decoder()
        return Pipe(self.pool.hub, fd, lambda data: self.pool.printed(self.rank, stream, decoder.decode(data)))

    def _answered(self, frame: wire.Frame) -> None:
        with self.pool.lock:
            self.answer = frame.meta
            self.pool.changed.notify_all()

    def _died(self, status: int) -> None:
        self.messages.drain()  # what it said before
        self.drain_prints()
        self.close()
        self.status = status
        self.pool.died(self)

    def drain_prints(self) -> None:
        for pipe in self.pipes:
            pipe.drain()

    def close(self) -> None:
        self.messages.close()
        self.guard.close()
        for pipe in self.pipes:
            pipe.close()

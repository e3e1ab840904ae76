"""What a rank remembers of its communication: how many calls it made where, which one it waits in, and from which line.

Two ranks are in step when their records of a channel agree. A channel is a process group (every member makes the same collectives
in the same order) or one direction between two ranks (what is sent is received).
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from course.ranks.slots import RUNNING, WAITING, Slots, Where, call_text

KEPT = 64  # calls remembered of a channel
COLLECTIVE, SEND, RECV = "collective", "send", "recv"


class Call(NamedTuple):
    """One communication call of this rank."""

    op: str
    channel: str
    side: str  # COLLECTIVE, SEND or RECV
    members: tuple[int, ...]  # global ranks of the group; (source, destination) of a message, -1 for "any"
    number: int  # on the channel, from 1
    agree: str  # what has to be the same on every member
    signature: str  # what the learner reads: "float32[4], sum"
    where: Where


def to_text(call: Call) -> str:
    members = " ".join(map(str, call.members))
    head = (call.op, call.channel, call.side, members, str(call.number), call.agree, call.signature)
    return "\x1f".join((*head, call.where.file, str(call.where.line), call.where.function))


def from_text(text: str) -> Call | None:
    parts = text.split("\x1f")
    if len(parts) != 10:
        return None
    op, channel, side, members, number, agree, signature, file, line, function = parts
    where = Where(file, int(line), function)
    return Call(op, channel, side, tuple(map(int, members.split())), int(number), agree, signature, where)


class Record(NamedTuple):
    """All calls on one side of a channel so far."""

    channel: str
    side: str
    members: tuple[int, ...]
    total: int
    digest: int  # of the ``agree`` of all calls
    recent: tuple[Call, ...]


class Ledger(NamedTuple):
    """What one rank answers when it is asked: its records, and the call it is blocked in."""

    records: tuple[Record, ...]
    waiting: Call | None
    unwaited: tuple[Call, ...] = ()  # messages it has started and not waited for


class _Channel:
    def __init__(self) -> None:
        self.count = self.digest = 0
        self.recent: deque[Call] = deque(maxlen=KEPT)
        self.unwaited: dict[int, Call] = {}  # by number


class _Depth(threading.local):
    value = 0  # of calls inside calls, in this thread


class Calls:
    """The ledger of this process. ``hooks`` writes to it, the guard thread reads it."""

    def __init__(self, rank: int, slots: Slots) -> None:
        self.rank = rank
        self.failed_in = ""
        self.depth = _Depth()
        self._slots = slots
        self._channels: dict[tuple[str, str, tuple[int, ...]], _Channel] = {}
        self._waits: list[Call] = []
        self._labels = 0
        self._told = 0

    def reset(self) -> None:
        """A fresh process group: every rank starts at zero. For the main thread, which an interrupt may have torn out of a call."""
        self.depth.value = 0
        self._channels = {}
        self._waits = []
        self._labels = self._told = 0
        self._slots.note(self.rank, "")

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """The enclosed calls are none of the learner's."""
        self.depth.value += 1
        try:
            yield
        finally:
            self.depth.value -= 1

    def post(self, described: tuple[str, str, str, tuple[int, ...], str, str], where: Where) -> Call:
        """Note that this rank makes a call, ``described`` as ``(op, channel, side, members, agree, signature)``."""
        op, channel, side, members, agree, signature = described
        known = self._channels.setdefault((channel, side, members), _Channel())
        known.count += 1
        known.digest = zlib.crc32(agree.encode(), known.digest)
        call = Call(op, channel, side, members, known.count, agree, signature, where)
        known.recent.append(call)
        self._slots.note(self.rank, to_text(call))
        return call

    def opened(self, call: Call) -> None:
        """``call`` is asynchronous."""
        if call.side != COLLECTIVE:
            known = self._channels[call.channel, call.side, call.members]
            known.unwaited[call.number] = call
            if len(known.unwaited) > KEPT:
                del known.unwaited[next(iter(known.unwaited))]

    def closed(self, call: Call) -> None:
        """It was waited for."""
        known = self._channels.get((call.channel, call.side, call.members))
        if known is not None:  # else its group is gone
            known.unwaited.pop(call.number, None)

    @contextlib.contextmanager
    def waiting(self, call: Call) -> Iterator[None]:
        """This rank may block in ``call``."""
        self._waits.append(call)
        if not self._labels:
            self._slots.write(self.rank, WAITING, call_text(call.op, "", call.members, call.signature, call.where))
        try:
            yield
        except Exception:
            self.failed_in = call.op
            raise
        finally:
            self._waits.remove(call)
            if not self._labels:
                self._slots.write(self.rank, RUNNING)

    # ---- the monitor of minipar.comm, which knows the name of the axis

    def enter(self, op: str, axis: str, members: tuple[int, ...], signature: str) -> None:
        self._labels += 1
        self._slots.write(self.rank, WAITING, call_text(op, axis, members, signature, user_line(sys._getframe(1))[0]))

    def leave(self) -> None:
        self._labels -= 1
        self._slots.write(self.rank, RUNNING)

    # ---- for the kernel

    def snapshot(self) -> Ledger:
        for _ in range(10):
            with contextlib.suppress(RuntimeError):  # the main thread made a call meanwhile
                records = tuple(
                    Record(*key, channel.count, channel.digest, tuple(channel.recent))
                    for key, channel in list(self._channels.items())
                )
                unwaited = tuple(call for channel in list(self._channels.values()) for call in list(channel.unwaited.values()))
                return Ledger(records, self._waits[-1] if self._waits else None, unwaited)
        return Ledger((), None)

    def tally(self) -> tuple[Record, ...] | None:
        """The records without their calls, if there was a call since the last time."""
        total = sum(channel.count for channel in self._channels.values())
        if total == self._told:
            return None
        self._told = total
        return tuple(Record(*key, channel.count, channel.digest, ()) for key, channel in self._channels.items())


# ---- whose code is this?

_USER, _LIBRARY, _COMM, _MINIPAR = range(4)
_kinds: dict[str, int] = {}
_ROOT = Path(__file__).resolve().parents[2]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_library(file: str) -> bool:
    """Whether ``file`` is Python's, an installed package's, or this project's own, and not the learner's."""
    return kind_of_file(file) != _USER


def is_minipars(file: str) -> bool:
    """Whether ``file`` is of minipar or the course, beside what only carries messages and runs ranks."""
    return kind_of_file(file) == _MINIPAR


def kind_of_file(file: str) -> int:
    if file.startswith("<") and not file.startswith("<%%ranks"):
        return _LIBRARY  # <frozen importlib>, <string>
    if file.startswith(f"{_ROOT}/minipar/comm/"):
        return _COMM
    if file.startswith(f"{_ROOT}/course/ranks/"):
        return _LIBRARY
    if file.startswith((f"{_ROOT}/minipar/", f"{_ROOT}/course/")):
        return _MINIPAR
    return _LIBRARY if file.startswith(_LIBRARIES) else _USER


def user_line(frame: FrameType | None) -> tuple[Where, bool]:
    """The innermost line of the learner's own code (else the innermost of minipar's), and whether it came through minipar.comm."""
    through_comm, minipars = False, None
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = kind_of_file(code.co_filename)
        if kind == _USER:
            return Where(code.co_filename, frame.f_lineno, code.co_name), through_comm
        if kind == _COMM:
            through_comm = through_comm or minipars is None
        elif kind == _MINIPAR and minipars is None:
            minipars = Where(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return minipars or Where(), through_comm

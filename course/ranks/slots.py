"""What every rank does right now, in memory that the ranks write and the kernel reads at any time.

One slot of 4 KiB a rank. The writer makes the version odd, writes, and makes it even again; a reader that saw an odd or a
changed version reads once more.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from minipar.trace import now

SIZE = 4096
LAST = 2048  # where the second half of a slot begins: the call that the rank made last
VERSION = struct.Struct("<Q")
HEAD = struct.Struct("<QdBH")  # version, since, state, bytes of text
STATES = ("starting", "idle", "running", "waiting", "dead")
STARTING, IDLE, RUNNING, WAITING, DEAD = range(len(STATES))


class Where(NamedTuple):
    """A line of the user's own code."""

    file: str = ""
    line: int = 0
    function: str = ""


class RankState(NamedTuple):
    """What one rank is doing. ``since`` is on the clock of ``minipar.trace.now`` (seconds)."""

    rank: int
    state: str  # one of STATES
    since: float
    op: str = ""  # the communication call it waits in
    axis: str = ""
    members: tuple[int, ...] = ()  # the ranks that take part in it
    signature: str = ""  # "float32[4]"
    where: Where = Where()
    version: int = 0  # changes whenever the state does
    pid: int = 0

    @property
    def seconds(self) -> float:
        """How long it has been in this state."""
        return now() - self.since

    def __str__(self) -> str:
        call = f" in {self.op}" + (f" over {self.axis!r}" if self.axis else "") if self.op else ""
        return f"rank {self.rank} {self.state}{call}"


class Slots:
    """The slots of all ranks of a pool. ``write`` is for the rank itself, ``read`` for anyone."""

    def __init__(self, path: Path, ranks: int, create: bool = False) -> None:
        if create:
            path.touch(mode=0o600)
            with path.open("r+b") as file:
                file.truncate(SIZE * ranks)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE * ranks)
        self._versions = [0] * ranks

    def write(self, rank: int, state: int, text: str = "") -> None:
        """Publish ``state``; ``text`` holds the fields of the communication call, see ``call_text``."""
        data = text.encode()[: LAST - HEAD.size]
        version, at = self._versions[rank], rank * SIZE
        HEAD.pack_into(self._map, at, version + 1, now(), state, len(data))
        if data:
            self._map[at + HEAD.size : at + HEAD.size + len(data)] = data
        VERSION.pack_into(self._map, at, version + 2)
        self._versions[rank] = version + 2

    def read(self, rank: int, pid: int = 0) -> RankState:
        for _ in range(100):
            version, since, state, size = HEAD.unpack_from(self._map, rank * SIZE)
            start = rank * SIZE + HEAD.size
            data = self._map[start : start + size]
            if version % 2 == 0 and HEAD.unpack_from(self._map, rank * SIZE)[0] == version:
                break
        return RankState(rank, STATES[state], since, *_fields(data.decode(errors="replace")), version, pid)

    def note(self, rank: int, text: str) -> None:
        """Leave a word for the case that this rank dies: the call it is about to make."""
        data = text.encode()[: SIZE - LAST - 2]
        at = rank * SIZE + LAST
        self._map[at : at + 2 + len(data)] = len(data).to_bytes(2, "little") + data

    def last_words(self, rank: int) -> str:
        at = rank * SIZE + LAST
        size = int.from_bytes(self._map[at : at + 2], "little")
        return self._map[at + 2 : at + 2 + size].decode(errors="replace")

    def close(self) -> None:
        self._map.close()


def call_text(op: str, axis: str, members: tuple[int, ...], signature: str, where: Where) -> str:
    return "\x1f".join((op, axis, " ".join(map(str, members)), signature, where.file, str(where.line), where.function))


def _fields(text: str) -> tuple[str, str, tuple[int, ...], str, Where]:
    parts = text.split("\x1f")
    if len(parts) != 7:
        return "", "", (), "", Where()
    op, axis, members, signature, file, line, function = parts
    return op, axis, tuple(map(int, members.split())), signature, Where(file, int(line), function)

"""Messages that were started and let go before anyone waited for them.

gloo takes a message from, and puts it into, memory that belongs to what starting it returned. Where that is gone too early, the
connection stays at this message for ever: none that follows between the two ranks gets through, and nobody is told. So they are
kept here until they are over.

gloo says that a message is over only to who waits for it, and then may block. But between two ranks messages arrive in the order in
which they were started, so those before one that is over are over as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

MOST = 64  # kept of one way between two ranks: who starts more waits for the first of them

Ways = frozenset[Hashable]  # "out to rank 1 in this group": what is started first on a way is over first


class Kept(NamedTuple):
    """Messages that were started together; their works hold the tensors too."""

    number: int  # those with a larger one were started later
    ways: Ways
    works: Sequence[Any]


kept: list[Kept] = []
_everyone: Any = None  # the group of all ranks in which they were started


def keep(number: int, ways: Ways, works: Sequence[Any]) -> None:
    """Hold on to messages that nobody will wait for. Those of a process group that is gone are gone with it."""
    global _everyone
    everyone = dist.group.WORLD if dist.is_initialized() else None
    if everyone is not _everyone:
        forget()
        _everyone = everyone
    if everyone is not None:
        kept.append(Kept(number, ways, works))


def passed(number: int, ways: Ways) -> None:
    """The messages ``number`` are over, and with them all that were started before on these ways."""
    for one in kept[:]:
        if one.number < number and one.ways <= ways:
            _let_go(one)


def make_room(ways: Ways) -> None:
    """Before one more message on these ways: where too many are kept, wait for the first."""
    while len(mine := [one for one in kept if one.ways & ways]) >= MOST:
        _let_go(mine[0])


def forget() -> None:
    """The process group is given up: whatever was under way in it never arrives, and nothing here holds its sockets."""
    global _everyone
    kept.clear()
    _everyone = None


def _let_go(one: Kept) -> None:
    try:
        kept.remove(one)
    except ValueError:  # another thread waits for it, and gloo tells only one
        return
    for work in one.works:
        work.wait()

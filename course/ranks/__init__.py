"""Real ranks behind a notebook cell: a fork server, a pool of processes, and an explanation for whatever goes wrong.

How the files fit together::

    the kernel's process                              a rank's process
    ranks.py     Ranks: what a notebook touches       inside.py    the loop: join the group, run a function, report
    run.py       Run: one function on every rank      guard.py     the second thread: lifeline, events, questions
    pool.py      the ranks and what they say          hooks.py     sees every torch.distributed call
    member.py    one rank's process                   calls.py     the ledger of those calls
    recovery.py  stop, kill, re-fork, join again      report.py    an exception as plain data
    hub.py       the one thread that reads            devices.py   GPU or CPU, NCCL or gloo
    server.py    asks the fork server for processes   cells.py     the namespace of %%ranks cells
    watchdog.py  explains a hang
    turns.py     how long a rank had the chance to react
    errors.py    what the learner reads               between the two
    magic.py     %%ranks                              zygote.py    the fork server: torch imported, no CUDA
    strays.py    records, and the clean-up            uncompiled.py  optimizers that load no compiler
                                                      slots.py     what each rank does now, in shared memory
    culprit.py   names what cannot be sent            wire.py      frames and pickles
                                                      functions.py   a notebook's functions, taken apart and made again
                                                      special.py   other things that a notebook defines, likewise
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course.ranks.errors import RankDied, RankError, RanksInterrupted, RanksStopped, RanksStuck, RanksTimeout
    from course.ranks.inside import device, emit
    from course.ranks.ranks import Ranks
    from course.ranks.run import Event, Run

__all__ = [
    "Event",
    "RankDied",
    "RankError",
    "Ranks",
    "RanksInterrupted",
    "RanksStopped",
    "RanksStuck",
    "RanksTimeout",
    "Run",
    "device",
    "emit",
]

_HOMES = {
    "Event": "course.ranks.run",
    "Run": "course.ranks.run",
    "Ranks": "course.ranks.ranks",
    "device": "course.ranks.inside",
    "emit": "course.ranks.inside",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'course.ranks' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_HOMES.get(name, "course.ranks.errors")), name)

"""``Ranks``: what a notebook touches."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import psutil

from course.namesake import behind, refuse_namesakes
from course.ranks import cells, inside, wire
from course.ranks.errors import RanksInterrupted
from course.ranks.pool import Pool
from course.ranks.run import Run
from course.ranks.server import fork_server
from course.ranks.slots import RankState
from minipar.checks import not_above_zero

MOST = 256  # ranks in a pool, whatever the machine
MEMORY_OF_A_RANK = 100e6  # bytes that a rank needs beside what it shares with the fork server


class Ranks:
    """``n`` real processes that work as ranks 0 to n-1 of one process group::

        with Ranks(4) as ranks:
            out = ranks.run(fn, x)        # fn(x) on every rank; out[r] is what rank r returned

    ``device``: "auto" (a GPU for each rank over NCCL; else shared GPUs, else the CPU, over gloo), "cpu" or "cuda".
    ``hardware``: a preset name or a ``minipar.hardware.Cluster``: every call then lasts as long as it would there (*paced*).
    A pace that a function sets itself (``comm.pace``) ends with its run.

    Functions and arguments travel by value. Variables that should outlive a call live in ``%%ranks`` cells. Whatever goes wrong
    ends in an error that says which rank, which line and what to do, and in idle ranks.
    """

    def __init__(self, n: int, device: str = "auto", hardware: Any = None) -> None:
        _check(n, device)
        refuse_namesakes("torch", "numpy")
        self.n = n
        self.hardware = _cluster(hardware)
        self.last_run: Run | None = None
        self._pool = Pool(n, device, self.hardware)
        self._finalizer = weakref.finalize(self, self._pool.close, False)
        try:
            self._pool.open()
        except BaseException:
            self._pool.close(wait=False)
            raise

    def start(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Run:
        """Start ``function(*args)`` on every rank and return at once."""
        if not callable(function):
            raise TypeError(
                f"run() takes a function and its arguments: ranks.run(fn, x), not ranks.run(fn(x)); got {type(function).__name__}"
            )
        return self._start(getattr(function, "__name__", type(function).__name__), function, args, timeout)

    def _start(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], timeout: float | None, cell: bool = False
    ) -> Run:
        if timeout is not None and not_above_zero("timeout", timeout):
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
        self._pool.refuse_if_busy_now()
        self.last_run = self._pool.launch(name, _packed(function, args), timeout, keeps_messages=cell)
        return self.last_run

    def run(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """``function(*args)`` on every rank; what each returned, by rank. After ``timeout`` seconds the ranks are stopped."""
        with self._told_of_interrupts():
            return self.start(function, *args, timeout=timeout).result()

    @contextmanager
    def _told_of_interrupts(self) -> Iterator[None]:
        """An interrupt may come before ``result`` waits, while the ranks are still being told: it ends the run all the same."""
        before = self._pool.latest
        try:
            yield
        except RanksInterrupted:
            raise
        except KeyboardInterrupt:
            run = self._pool.latest
            if run is None or run is before:
                raise
            run.stop()
            raise RanksInterrupted(run.error) from None

    def run_cell(self, source: str, file: str = "<%%ranks>", timeout: float | None = None) -> None:
        """Run source text in every rank's own namespace: what ``%%ranks`` does."""
        with self._told_of_interrupts():
            self._start("the %%ranks cell", cells.run_cell, (source, file), timeout, cell=True).result()

    def push(self, **variables: Any) -> None:
        """Set variables for the ``%%ranks`` cells of every rank."""
        self.run(cells.push, variables)

    def pull(self, name: str) -> list[Any]:
        """The value of a ``%%ranks`` variable, by rank."""
        return self.run(cells.pull, name)

    def states(self) -> list[RankState]:
        """What every rank does right now; never waits."""
        return self._pool.states()

    @property
    def pids(self) -> list[int]:
        """The process id of every rank."""
        return [m.pid for m in self._pool.members]

    def describe(self) -> str:
        """How numbers taken on these ranks are to be labelled: measured, or paced, and on what."""
        info = self._pool.members[0].info
        if self.hardware is not None:
            return f"paced as {self.hardware.name}"
        if not info.get("gpus"):
            return "measured on CPU"
        return "measured" if info["gpus"] >= self.n else "measured, ranks share a GPU"

    @property
    def closed(self) -> bool:
        return self._pool.closed

    def close(self) -> None:
        """End all ranks."""
        self._finalizer.detach()
        self._pool.close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ranks({self.n}): {'closed' if self._pool.closed else self.describe()}>"

    def __reduce__(self) -> Any:
        raise TypeError("Ranks cannot be sent to a rank: use torch.distributed or minipar.comm there, and ranks.run(...) only here")


def _check(n: int, device: str) -> None:
    here = inside.inside()
    if here is not None:
        raise RuntimeError(
            f"this is rank {here.rank} of {here.size} already, and ranks cannot start ranks: use torch.distributed.new_group here"
        )
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"the number of ranks is a whole number, not {n!r}")
    if n < 1:
        raise ValueError(f"at least 1 rank is needed, not {n}")
    room = min(MOST, int(psutil.virtual_memory().available / MEMORY_OF_A_RANK))
    if n > room:
        raise ValueError(f"{n} ranks are too many for this machine: its memory has room for about {room}; 2 to 8 show everything")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is 'auto', 'cpu' or 'cuda', not {device!r}")


def _cluster(hardware: Any) -> Any:
    if hardware is None:
        return None
    from minipar.hardware import cluster

    return cluster(hardware)


def _packed(function: Callable[..., Any], args: tuple[Any, ...]) -> memoryview:
    try:
        return wire.dumps((function, args))
    except Exception as error:
        if said := behind(error):
            raise ImportError(said) from error
        from course.ranks.culprit import culprit

        raise TypeError(
            f"{culprit(function, args)} cannot be sent to the ranks: {str(error).rstrip('.')}. Pass "
            "plain data, tensors or modules, and make locks, connections, generators and compiled functions inside the function"
        ) from None


def _announce() -> None:
    """In a notebook, ``%%ranks`` comes with the class, and the fork server loads torch while the cell's other imports go on."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        refuse_namesakes("torch", "numpy")  # which most notebooks load next, and might not even have a name for what is wrong
        from course.ranks import magic

        magic.register(shell)
        with contextlib.suppress(OSError, RuntimeError):  # whoever makes ranks is told
            fork_server()


_announce()

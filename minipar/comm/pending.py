"""A communication under way: launched, waited for, traced, and paced where the rank is paced."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from minipar import pacing
from minipar.mesh import Axis
from minipar.trace import COMM, now, tracer

SHARES = {  # the share of the full buffer that each of n ranks puts on the wire in a ring; the same for every rank
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,  # n - 1 copies of the buffer in all, passed on from rank to rank
    "barrier": lambda n: 0.0,
}


def wire_bytes(op: str, nbytes: float, n: int) -> float:
    """Bytes that one of ``n`` ranks sends in collective ``op`` on a full buffer of ``nbytes``.

    The full buffer is the input of an all-reduce, reduce-scatter or broadcast and the output of an all-gather. These are the
    least that a bandwidth-optimal algorithm needs (Thakur, Rabenseifner and Gropp 2005), whatever the backend does inside.
    """
    return SHARES[op](n) * nbytes


class Monitor(Protocol):
    """Someone who watches which call this rank is blocked in."""

    def enter(self, op: str, axis: str, members: tuple[int, ...], signature: str) -> None: ...

    def leave(self) -> None: ...


_monitor: Monitor | None = None


def set_monitor(monitor: Monitor | None) -> Monitor | None:
    """``monitor`` is told before this rank blocks in a communication and after it (None: nobody is). Returns the one before."""
    global _monitor
    before, _monitor = _monitor, monitor
    return before


def watched() -> bool:
    """Whether a monitor is set: then torch's own functions are called, which the one who set it may watch too."""
    return _monitor is not None


@contextlib.contextmanager
def _monitored(monitor: Monitor, op: str, axis: Axis, like: torch.Tensor | None) -> Iterator[None]:
    with tracer.blocked():
        monitor.enter(op, axis.name, axis.ranks, signature(like))
        try:
            yield
        finally:
            monitor.leave()


def waiting(op: str, axis: Axis, like: torch.Tensor | None) -> contextlib.AbstractContextManager[None]:
    """In the enclosed lines this rank may be blocked in ``op``."""
    return tracer.blocked() if _monitor is None else _monitored(_monitor, op, axis, like)


class Leg(NamedTuple):
    """What there is to account for in a call."""

    op: str
    nbytes: float  # that this rank puts on the wire
    peers: tuple[int, ...]  # global ranks
    settle: Callable[[], tuple[float, float]] | None = None  # the paced (start, end), known once the work is done


class Pending:
    """A communication that may still be under way. ``wait()`` ends it and returns its tensor or tensors, as often as asked.

    The tensors handed in belong to the transfer until then: neither write to them nor rely on an output.
    """

    def __init__(
        self,
        works: Sequence[dist.Work],
        leg: Leg,
        axis: Axis,
        like: torch.Tensor | None,
        finish: Callable[[], Any],
        launched: float | None = None,
    ) -> None:
        self._works = list(works)
        self._leg = leg
        self._axis = axis
        self._like = like
        self._finish = finish
        self._launched = now() if launched is None else launched
        self._phase = tracer.phase
        self._waited = False
        self._value: Any = None
        self._completed: list[float] = []  # when the last of the works ended
        self._stamp_completion()

    def _stamp_completion(self) -> None:
        """Note when an asynchronous call really ended, so that overlap shows.

        Some of gloo's calls (reduce-scatter) give no such signal: for them the end is that of ``wait()``. A paced call's end
        comes from the model.
        """
        if tracer.enabled and self._works and self._leg.settle is None:
            with contextlib.suppress(RuntimeError):
                self._works[-1].get_future().add_done_callback(partial(_ended, self._completed))

    def done(self) -> bool:
        """True once the work is over; never blocks. Some of gloo's calls (reduce-scatter) are over only when waited for."""
        return self._waited or (bool(self._works) and all(work.is_completed() for work in self._works))

    def wait(self) -> Any:
        if not self._waited:
            self._waited = True
            with pacing.call():
                if self._works:
                    self._block()
                self._value = self._finish()
            self._like = None
            self._finish = _nothing  # the works stay: dropping one at once waits for gloo's thread to let go of it
        return self._value

    def _block(self) -> None:
        began, leg = now(), self._leg
        with waiting(leg.op, self._axis, self._like):
            for work in self._works:
                work.wait()
            start, end = self._paced(leg.settle) if leg.settle else self._measured(began)
        tracer.add(leg.op, COMM, start, end, self._axis.name, leg.nbytes, leg.peers, phase=self._phase)

    def _paced(self, settle: Callable[[], tuple[float, float]]) -> tuple[float, float]:
        times = settle()
        pacer = pacing.current()
        if pacer is not None:
            pacer.wait([times])
        return times

    def _measured(self, began: float) -> tuple[float, float]:
        """A collective is under way from its launch to its end.

        Where this rank came to wait before the end, it was blocked until it ran again: that is the end for it.
        """
        ended = self._completed[-1] if self._completed else began
        return self._launched, ended if ended < began else now()


def _nothing() -> None:
    return None


def _ended(completed: list[float], _: torch.futures.Future) -> None:
    """In gloo's thread. It knows nothing of the ``Pending``, which may be the last to hold the group, and with it this thread."""
    completed.append(now())
    _stay_known_to_python()


_known = threading.local()


def _stay_known_to_python() -> None:
    """Keep what Python has set up for a thread that is not its own, until the process ends.

    Otherwise each call that gloo's thread makes sets it up and tears it down: four fifths of what tracing a call costs.
    """
    if not hasattr(_known, "state"):
        _known.state = ctypes.pythonapi.PyGILState_Ensure()


def finished(value: Any) -> Pending:
    """A communication that needed none: an axis of one rank."""
    pending = Pending((), Leg("", 0, ()), Axis("", 1, 0, (0,)), None, lambda: value)
    pending.wait()
    return pending


def launch(
    op: str,
    axis: Axis,
    x: torch.Tensor,
    full_bytes: float,
    start: Callable[[], dist.Work],
    finish: Callable[[], Any],
    nbytes: float | None = None,
) -> Pending:
    """Start one collective on ``x``. ``full_bytes`` is its full buffer, ``nbytes`` what this rank sends if not the ring's share."""
    launched = now()
    sent = wire_bytes(op, full_bytes, axis.size) if nbytes is None else nbytes
    peers = tuple(r for r in axis.ranks if r != axis.ranks[axis.rank])
    pacer = pacing.current()
    if pacer is None:
        return Pending([start()], Leg(op, sent, peers), axis, x, finish, launched)
    with pacer:
        agreed, settle = _agree(op, axis, full_bytes, pacer)
        return Pending([agreed, start()], Leg(op, sent, peers, settle), axis, x, finish, launched)


def _agree(op: str, axis: Axis, full_bytes: float, pacer: pacing.Pacer) -> tuple[dist.Work, Callable[[], tuple[float, float]]]:
    """Start to agree on when the last rank of the axis is ready; from then the collective is under way."""
    stamp = torch.tensor([pacer.ready(axis.ranks), pacer.late], dtype=torch.float64)
    work = dist.all_reduce(stamp, dist.ReduceOp.MAX, axis.group, async_op=True)

    def settle() -> tuple[float, float]:
        ready, late = stamp.tolist()
        pacer.excuse(late)
        return pacer.collective(op, full_bytes, axis.ranks, ready)

    return work, settle


def signature(x: torch.Tensor | None) -> str:
    """What must agree between ranks: ``float32[4, 8]``."""
    if x is None:
        return ""
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def to_wire(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """``x`` as the backend can take it: contiguous, and in pinned host memory where ranks share a GPU over gloo."""
    if x.is_cuda and dist.get_backend(axis.group) == "gloo":
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        return host.copy_(x)
    return x.contiguous()

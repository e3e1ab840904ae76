"""What a rank's process does: join the process group, wait for a function, run it, report. And what user code may call there."""

from __future__ import annotations

import ctypes
import io
import os
import random
import signal
import socket
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from course.ranks import calls, surroundings, wire
from course.ranks.devices import choose_device
from course.ranks.guard import Guard, leave, main_stack
from course.ranks.report import Failure, failure
from course.ranks.slots import IDLE, RUNNING, Slots
from minipar.trace import now, tracer

_libc = ctypes.CDLL(None)


class Interrupt(KeyboardInterrupt):
    """Raised in the user's function when the kernel is interrupted or the run is stopped."""


def _unraisable(args: Any) -> None:
    """What a destructor raised. An interrupt that came just there is lost, and is sent again: nothing to tell."""
    if not issubclass(args.exc_type, Interrupt):
        sys.__unraisablehook__(args)


class Rank:
    """This process, as a rank of its pool."""

    def __init__(self, messages: socket.socket, guard: socket.socket) -> None:
        self.messages = messages
        self.sending = threading.Lock()
        self.outbox: deque[tuple[str, float, memoryview]] = deque()
        self.running = False
        self.is_copy = False
        self.run_id = -1
        self.rank, self.size = -1, 0
        self.device: Any = None
        self.hardware: Any = None  # that every run is paced by
        self.slots: Slots
        self.calls: calls.Calls
        self.is_joined: Callable[[], bool]
        self.pace: Callable[[Any, int], None]
        self.surroundings = surroundings.Surroundings()
        self.guard = Guard(guard, self.flush, self.describe)
        self.main = _fresh_main()

    # ---- joining and leaving

    def join(self, order: dict[str, Any], hardware: bytes) -> None:
        """Become rank ``order["rank"]`` of ``order["size"]`` in a fresh process group, then say so."""
        self.rank, self.size = order["rank"], order["size"]
        surroundings.adopt_environment(order["env"])
        self.surroundings.adopt(order["surroundings"])
        if not self.guard.is_alive():
            self._first_time(order)
        try:
            info = self._join_group(order, hardware)
            ready: dict[str, Any] = {"info": info, "failure": None}
        except Exception as error:
            ready = {"info": {}, "failure": failure(self.rank, "raised", error)}
        self.slots.write(self.rank, IDLE)
        self._tell(wire.READY, ready)

    def _first_time(self, order: dict[str, Any]) -> None:
        import torch

        from course.ranks import hooks
        from minipar import comm, pacing

        random.seed()
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()
        torch.set_num_threads(max(1, order["cpus"] // order["size"]))
        self.slots = Slots(order["slots"], self.size)
        self.calls = calls.Calls(self.rank, self.slots)
        self.is_joined = torch.distributed.is_initialized
        self.pace = pacing.pace
        hooks.attach(self.calls)
        comm.set_monitor(self.calls)
        tracer.rank = self.rank
        self.main.__dict__.update(rank=self.rank, world_size=self.size, torch=torch, dist=torch.distributed)
        signal.signal(signal.SIGINT, self._on_interrupt)
        sys.unraisablehook = _unraisable
        os.register_at_fork(after_in_child=lambda: setattr(self, "is_copy", True))
        self.guard.start()

    def _join_group(self, order: dict[str, Any], hardware: bytes) -> dict[str, Any]:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        self.device, backend, gpus = choose_device(order["device"], self.rank, self.size)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        store = dist.FileStore(order["store"], self.size)
        with self.calls.unseen():
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=timedelta(days=1))
            if backend != "gloo":
                dist.barrier()
        self.calls.reset()
        self.hardware = wire.loads(hardware) if hardware else None
        return {"device": str(self.device), "backend": backend, "gpus": gpus}

    def leave_group(self) -> None:
        """Give up the process group, whose messages may be half delivered; variables stay."""
        import torch.distributed as dist

        from minipar import unwaited

        unwaited.forget()
        with self.calls.unseen():
            if dist.is_initialized():
                dist.destroy_process_group()
        self._tell(wire.LEFT, None)

    # ---- running a function

    def run(self, order: tuple[int, bytes], body: bytes) -> None:
        self.run_id, packed = order
        self.surroundings.adopt(packed)
        tracer.drain()
        self.pace(self.hardware, self.rank)  # anew: what an earlier run left under way, was late, or paced by itself is over
        self.slots.write(self.rank, RUNNING)
        fault, result = self._call(body)
        if self.is_copy:  # of os.fork in the function: only the rank itself answers
            self._end_copy(fault)
        self.slots.write(self.rank, IDLE)
        _flush_prints()
        with self.sending:
            self._send_events()
            done = (self.run_id, fault, self.calls.tally(), self.is_joined())
            wire.send(self.messages, wire.DONE, done, result)

    def _end_copy(self, fault: Failure | None) -> NoReturn:
        if fault is not None:
            print(f"in a process forked by rank {self.rank}: {fault.message}", file=sys.stderr)
        _flush_prints()
        os._exit(fault is not None)

    def _tell(self, kind: int, meta: Any, body: bytes | memoryview = b"") -> None:
        with self.sending:
            wire.send(self.messages, kind, meta, body)

    def _call(self, body: bytes) -> tuple[Failure | None, bytes | memoryview]:
        """Run the function; a failure or its pickled result. An interrupt is only let in between the two marks."""
        kind = "function"
        self.calls.failed_in = ""
        try:
            try:
                self.running = True
                function, args = wire.loads(body)
                kind = "raised"
                result = function(*args)
                kind = "result"
                return None, wire.dumps(result)
            finally:
                self.running = False
        except BaseException as error:
            self.running = False  # an interrupt may have come just before the line above
            return self._outcome(kind, error), wire.dumps(None)

    def _outcome(self, kind: str, error: BaseException) -> Failure | None:
        if isinstance(error, Interrupt):
            return failure(self.rank, "interrupted", error)
        if isinstance(error, SystemExit):
            return failure(self.rank, "exit", error) if error.code else None
        return failure(self.rank, kind, error, self.calls.failed_in)

    def _on_interrupt(self, *_: object) -> None:
        if self.running:
            raise Interrupt

    # ---- for the guard thread

    def flush(self) -> bool:
        """Send what was traced, emitted and printed since the last time; True while a function runs."""
        with self.sending:
            self._send_events()
        if self.running:
            _flush_text()
        return self.running

    def _send_events(self) -> None:
        spans = tracer.drain()
        emitted = [self.outbox.popleft() for _ in range(len(self.outbox))]
        if spans or emitted:
            plain = [(kind, time, bytes(payload)) for kind, time, payload in emitted]
            wire.send(self.messages, wire.EVENTS, {"run": self.run_id, "spans": [tuple(s) for s in spans], "emitted": plain})

    def describe(self) -> dict[str, Any]:
        return {"run": self.run_id, "stack": main_stack(), "ledger": self.calls.snapshot()}


_rank: Rank | None = None


def main(messages: socket.socket, guard: socket.socket) -> NoReturn:
    """The whole life of a rank. Ends with the process."""
    global _rank
    _open_prints()
    _rank = rank = Rank(messages, guard)
    reader = wire.Reader(messages)
    while True:
        try:
            frame = reader.receive()
            if frame.kind == wire.JOIN:
                rank.join(frame.meta, frame.body)
            elif frame.kind == wire.LEAVE:
                rank.leave_group()
            elif frame.kind == wire.RUN:
                rank.run(frame.meta, frame.body)
        except (EOFError, OSError):
            leave()


def inside() -> Rank | None:
    """The rank that this process is, or None in the kernel and under torchrun."""
    return _rank


def emit(kind: str, payload: Any) -> None:
    """Publish something to whoever watches this run: ``emit("loss", {"step": 3, "loss": 2.1})``.

    It arrives as an ``Event(kind, rank, time, payload)`` at ``run.subscribe`` and ``run.events(kind)``, in order and without
    loss. Outside of a rank it does nothing, so the same program runs under torchrun.
    """
    if not isinstance(kind, str):
        raise TypeError(f'the kind of an event is a string: emit("loss", 2.1); got {type(kind).__name__}')
    if _rank is not None:
        _rank.outbox.append((str.__str__(kind), now(), wire.dumps(payload)))  # plain, even where it was a member of an enum


def device() -> Any:
    """The ``torch.device`` that this rank computes on."""
    import torch

    return _rank.device if _rank is not None and _rank.device is not None else torch.device("cpu")


def _fresh_main() -> types.ModuleType:
    """An empty ``__main__``: the namespace of ``%%ranks`` cells."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return module


def _open_prints() -> None:
    """Point Python's own streams at the pipes. Any text can be printed, and a line is sent when it is whole."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "w", closefd=False)
        text = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="surrogatepass", line_buffering=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _flush_text() -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # the learner's own stream, or one that is closed
        return


def _flush_prints() -> None:
    """Everything printed so far, by C code too, is in the pipes."""
    _flush_text()
    _libc.fflush(None)

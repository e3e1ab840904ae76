"""The kernel's side of the fork server: start it once, ask for ranks, signal them, hear of their deaths."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from course.ranks import strays, surroundings
from course.ranks.hub import Hub, hub, quietly

START_LIMIT = 120.0  # seconds; importing torch from a cold disk can take a while


class ForkServer:
    """One for all pools of this kernel. Every callback comes from the hub's thread."""

    def __init__(self, the_hub: Hub) -> None:
        self._hub = the_hub
        self._tickets = itertools.count()
        self._waiting: dict[int, Future[int]] = {}
        self._up: Future[None] = Future()
        self._lock = threading.Lock()
        self._buffer = b""
        self._on_death: dict[int, Callable[[int], None]] = {}  # pid -> called with its exit code
        self._unclaimed: dict[int, int] = {}  # deaths nobody asked about yet
        self.on_interrupt: set[Callable[[float], None]] = set()  # called with the time of an interrupt, which may be over
        self.alive = True
        self.log = strays.home() / "zygote.log"
        environment = _environment()
        self._inherited = {k for k, v in environment.items() if os.environ.get(k) == v}
        self._own = environment.keys() - self._inherited  # not to be overwritten in ranks
        self._sock, theirs = socket.socketpair()
        with theirs, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), *_clean_path()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        strays.record_server(self._process.pid)
        self._hub.post(lambda: self._hub.watch(self._sock, select.POLLIN, self._hear))

    def fork(self, ranks: list[list[int]]) -> list[int]:
        """Fork a rank for each list of fds (messages, guard, stdout, stderr) and return the process ids. Blocks."""
        self._await_up()
        tickets = []
        for fds in ranks:
            number = next(self._tickets)
            self._waiting[number] = Future()
            tickets.append(self._waiting[number])
            self._send({"do": "fork", "ticket": number}, fds)
        try:
            return [ticket.result(timeout=30) for ticket in tickets]
        except BaseException:  # an interrupt too: nobody will ask for those that were or will be forked
            for ticket in tickets:
                if not ticket.cancel() and ticket.exception() is None:
                    self.signal([ticket.result()], signal.SIGKILL)
            raise

    def environment_of_ranks(self) -> dict[str, str | None]:
        """What ranks have to change to see the kernel's variables; None for one that it had at first and has no more."""
        return {k: v for k, v in {**dict.fromkeys(self._inherited), **os.environ}.items() if k not in self._own}

    def when_dead(self, pid: int, callback: Callable[[int], None]) -> None:
        """``callback`` gets the exit code of ``pid``, at once if it is dead already."""
        self._hub.post(lambda: self._claim(pid, callback))

    def _claim(self, pid: int, callback: Callable[[int], None]) -> None:
        if pid in self._unclaimed:
            callback(self._unclaimed.pop(pid))
        elif not self.alive:
            callback(-signal.SIGKILL)
        else:
            self._on_death[pid] = callback

    def signal(self, pids: list[int], number: int) -> None:
        """Signal those of ``pids`` that still are ranks of this server. Never blocks for long, never raises."""
        if pids and self.alive:
            with contextlib.suppress(OSError):
                self._send({"do": "signal", "pids": pids, "signal": int(number)})

    def await_delivery(self, seconds: float) -> None:
        """Wait until every signal sent before has reached its ranks: one that comes late would hit the next run."""
        number, answer = next(self._tickets), Future[int]()
        self._waiting[number] = answer
        with contextlib.suppress(OSError, RuntimeError):  # the server has gone, and its ranks with it, or gives no answer in time
            self._send({"do": "answer", "ticket": number})
            answer.result(timeout=seconds)

    def _await_up(self) -> None:
        try:
            self._up.result(timeout=START_LIMIT)
        except FutureTimeout:
            raise RuntimeError(f"the fork server did not start within {START_LIMIT:.0f} s; its log is {self.log}") from None

    def _send(self, order: dict[str, object], fds: list[int] | None = None) -> None:
        with self._lock:
            socket.send_fds(self._sock, [json.dumps(order).encode() + b"\n"], fds or [])

    def _hear(self) -> None:
        try:
            data = self._sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            return self._ended()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            quietly(self._handle, json.loads(line))

    def _handle(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "up":
            self._up.set_result(None)
        elif event == "forked":
            self._hand_over(self._waiting.pop(message["ticket"]), message["pid"])
        elif event == "answer":
            self._waiting.pop(message["ticket"]).set_result(0)
        elif event == "failed":
            why = f"the system refused to start another rank ({message['why']}); close other programs or use fewer ranks"
            ticket = self._waiting.pop(message["ticket"])
            if not ticket.cancelled():
                ticket.set_exception(RuntimeError(why))
        elif event == "died":
            callback = self._on_death.pop(message["pid"], None)
            if callback is None:
                self._unclaimed[message["pid"]] = message["status"]
            else:
                callback(message["status"])
        elif event == "interrupt":
            for stop in list(self.on_interrupt):
                stop(message["time"])

    def _hand_over(self, ticket: Future[int], pid: int) -> None:
        try:
            ticket.set_result(pid)
        except InvalidStateError:  # cancelled
            self.signal([pid], signal.SIGKILL)

    def _ended(self) -> None:
        """The fork server is gone, and with it its ranks; the next pool starts another one."""
        self.alive = False
        self._hub.forget(self._sock)
        self._sock.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        gone = RuntimeError(f"the fork server ended (exit code {self._process.returncode}). {last_words(self.log)}".strip())
        if not self._up.done():
            self._up.set_exception(gone)
        for ticket in self._waiting.values():
            if not ticket.cancelled():
                ticket.set_exception(gone)
        self._waiting.clear()
        for callback in list(self._on_death.values()):
            callback(-signal.SIGKILL)
        self._on_death.clear()

    def stop(self) -> None:
        """End the server and its ranks now."""
        if not self._up.done():
            self._process.kill()  # it still imports, hears nothing, and has no ranks
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_BOOT = "import sys; sys.path[:] = sys.argv[2:]; from course.ranks.zygote import main; main(int(sys.argv[1]))"


def last_words(log: Path) -> str:
    """The end of a log; nothing where the kernel, which ends too, has removed it."""
    try:
        return log.read_text(errors="replace")[-2000:]
    except OSError:
        return ""


def _clean_path() -> list[str]:
    """The kernel's import path, with the notebook's own folder last: a learner's ``random.py`` must not break the start.

    Only text: Python passes over whatever else was put there.
    """
    here = surroundings.working_folder()
    return [p for p in sys.path if isinstance(p, str) and p not in ("", here)] + [here]


def _environment() -> dict[str, str]:
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {**os.environ, **dict.fromkeys(names, loopback), "TORCH_CPP_LOG_LEVEL": "ERROR"}


_server: ForkServer | None = None
_guard = threading.Lock()


def fork_server() -> ForkServer:
    """This kernel's fork server, started when first needed and again when it was lost."""
    global _server
    with _guard:
        if _server is None or not _server.alive:
            first = _server is None
            _server = ForkServer(hub())
            if first:
                atexit.register(stop)  # after the kernel's folder was made, so that it runs before that is removed
        return _server


def stop() -> None:
    """At exit: end the fork server and with it every rank."""
    if _server is not None and _server.alive:
        _server.stop()


def _forget_in_child() -> None:
    global _server, _guard
    _guard = threading.Lock()
    _server = None


os.register_at_fork(after_in_child=_forget_in_child)

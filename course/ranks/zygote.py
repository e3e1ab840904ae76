"""The fork server: a process that has torch imported, never touches CUDA, and forks a rank in milliseconds.

It is started with ``python -c``, so it never sees the notebook's ``__main__``. It has one thread. The kernel asks for work in
lines of JSON on a Unix socket; a fork request brings the four file descriptors that the new rank will use. When
the socket closes or the kernel is no longer its parent, it ends every rank and then itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable

from minipar.trace import now

PRELOAD = (
    "cloudpickle",
    "numpy",
    "torch",
    "torch.distributed",
    "course.ranks.hooks",
    "torch.nn.functional",
    "torch.optim",
    "torch.fx.experimental.symbolic_shapes",  # and with it sympy: a backward from given gradients asks for it, in every rank
    "minipar.trace",
    "minipar.comm",
    "minipar.mesh",
    "minipar.model",
    "minipar.data",
    "minipar.hardware",
    "minipar.blend",  # and with it every technique
    "course.ranks.inside",
    "course.ranks.cells",
    "course.ranks.uncompiled",
)
INSTALLED = ("course.ranks.hooks", "course.ranks.uncompiled")  # hooks before minipar.comm takes its own references
FDS_OF_A_RANK = 4  # messages, guard, standard output, standard error


class Zygote:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parent = os.getppid()
        self.pids: set[int] = set()
        self.leaving = False
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: self._tell(event="interrupt", time=now()))  # Jupyter's, to the process group
        signal.signal(signal.SIGTERM, lambda *_: self._leave())

    def _leave(self) -> None:
        self.leaving = True

    def _tell(self, **message: object) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def _is_alone(self) -> bool:
        """Whether the kernel is gone. If that was before ``parent`` was noted, only the socket tells."""
        end = select.poll()
        end.register(self.sock, 0)  # no event but its end
        return bool(end.poll(0)) or os.getppid() != self.parent

    def preload(self) -> None:
        """Import what every rank needs. A timer looks after the kernel meanwhile."""
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1) if self._is_alone() else None)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        gc.disable()  # nothing of this becomes garbage
        for name in PRELOAD:
            if importlib.util.find_spec(name.partition(".")[0]) and _exists(name):
                module = importlib.import_module(name)
                if name in INSTALLED:
                    module.install()
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        gc.freeze()  # what is here now is never collected in a rank, so its memory stays shared
        gc.enable()

    def serve(self) -> None:
        buffer = b""
        fds: list[int] = []
        while not self.leaving and os.getppid() == self.parent:
            ready, _, _ = select.select([self.sock.fileno(), self.wake_read], [], [], 0.5)
            if self.wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
            if self.sock.fileno() in ready:
                data, new, _, _ = socket.recv_fds(self.sock, 65536, 4 * 16)
                if not data:
                    break
                buffer, fds = buffer + data, fds + list(new)
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    fds = self._obey(json.loads(line), fds)
            self._reap()
        for pid in self.pids:
            _kill(pid, signal.SIGKILL)

    def _obey(self, order: dict[str, object], fds: list[int]) -> list[int]:
        if order["do"] == "fork":
            mine, fds = fds[:FDS_OF_A_RANK], fds[FDS_OF_A_RANK:]
            self._fork(order, mine, others=fds)
        elif order["do"] == "answer":
            self._tell(event="answer", ticket=order["ticket"])
        else:
            for pid in set(order["pids"]) & self.pids:  # type: ignore[call-overload]
                _kill(pid, int(order["signal"]))  # type: ignore[call-overload]
        return fds

    def _fork(self, order: dict[str, object], mine: list[int], others: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # out of memory or of processes: the kernel says so
            self._close(mine)
            return self._tell(event="failed", ticket=order["ticket"], why=str(error))
        if pid == 0:
            self._become_rank(mine, others)
        self.pids.add(pid)
        self._close(mine)
        self._tell(event="forked", ticket=order["ticket"], pid=pid)

    @staticmethod
    def _close(fds: Iterable[int]) -> None:
        for fd in fds:
            os.close(fd)

    def _become_rank(self, mine: list[int], others: list[int]) -> None:
        """The child's way into ``inside.main``, from which nothing comes back."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM):
                signal.signal(name, signal.SIG_DFL)
            zygote = os.getppid()
            os.setsid()  # a process group of its own: an interrupt reaches it through the kernel's Run, never twice
            _die_with_parent(zygote)
            self._close([self.sock.detach(), self.wake_read, self.wake_write, *others])
            messages, guard, out, err = mine
            os.dup2(out, 1)
            os.dup2(err, 2)
            self._close([out, err])
            from course.ranks import inside

            inside.main(socket.socket(fileno=messages), socket.socket(fileno=guard))
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while self.pids:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.pids.discard(pid)
            self._tell(event="died", pid=pid, status=os.waitstatus_to_exitcode(status))


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _kill(pid: int, number: int) -> None:
    """SIGKILL ends a rank with all that it started; other signals go to the rank alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)
        os.kill(pid, number)


def _die_with_parent(parent: int) -> None:
    """On Linux the system ends a rank whose fork server is gone, even if the rank is stuck and sees nothing."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def main(fd: int) -> None:
    zygote = Zygote(socket.socket(fileno=fd))
    zygote.preload()
    zygote._tell(event="up")
    zygote.serve()

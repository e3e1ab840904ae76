"""The one thread of the kernel that reads from the ranks, and writes what could not be written at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from course.ranks import wire
from minipar.trace import now

TICK = 0.1  # seconds between two looks at time limits and hangs
READ = 1 << 20  # bytes taken from a socket at once
PIPE = 1 << 16  # bytes that a pipe holds
PIPES = 16  # times as much it may be told to hold; who prints without end does not keep the reader from all others
SMALL = 4096  # bytes that an empty socket takes at once on every system
LINUX = hasattr(select, "epoll")  # which costs the same however many files are watched, and counts in seconds


class Hub:
    """Watches file descriptors and calls back, always from its own thread.

    ``post`` may be called from anywhere, a finalizer included: it takes no lock.
    """

    def __init__(self) -> None:
        self._poll: Any = select.epoll() if LINUX else select.poll()
        self._watched: dict[int, tuple[Any, Callable[[], None]]] = {}  # by descriptor
        self.is_lost = False  # in a forked child, which has no reader thread
        self._late: list[Callable[[], None]] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._ears, self._bell = socket.socketpair()
        self._ears.setblocking(False)
        self._bell.setblocking(False)
        self.watch(self._ears, select.POLLIN, self._hear)
        self.tickers: set[Callable[[], None]] = set()
        self.memory = memoryview(bytearray(READ))  # what is read arrives here; new memory each time would cost more than reading
        self._thread = threading.Thread(target=self._loop, name="minipar-reader", daemon=True)
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def post(self, work: Callable[[], None]) -> None:
        """Have ``work`` done by the reader thread, soon."""
        self._posted.append(work)
        with contextlib.suppress(BlockingIOError, OSError):  # a full bell rings already
            self._bell.send(b"!")

    def watch(self, file: Any, events: int, callback: Callable[[], None]) -> None:
        """Reader thread only: call ``callback`` when ``file`` is ready for ``events`` (of ``select.poll``)."""
        known = file.fileno() in self._watched
        self._watched[file.fileno()] = file, callback
        (self._poll.modify if known else self._poll.register)(file, events)

    def forget(self, file: Any) -> None:
        """Reader thread only: no longer watch ``file``, which is about to be closed."""
        if self._watched.pop(file.fileno(), None) is not None:
            self._poll.unregister(file)

    def later(self, work: Callable[[], None]) -> None:
        """Reader thread only: have ``work`` done when all that has arrived by now has been taken in."""
        self._late.append(work)

    def _hear(self) -> None:
        self._ears.recv(4096)
        while self._posted:
            quietly(self._posted.popleft())

    def _loop(self) -> None:
        due = 0.0
        tick = TICK if LINUX else TICK * 1e3
        while True:
            late, self._late = self._late, []
            for fd, _ in self._poll.poll(0 if late else tick if self.tickers else None):
                if fd in self._watched:  # an earlier callback may have closed it
                    quietly(self._watched[fd][1])
            for work in late:
                quietly(work)
            if now() >= due:
                for ticker in list(self.tickers):
                    quietly(ticker)
                due = now() + TICK


def quietly(work: Callable[..., None], *args: Any) -> None:
    """A fault in a callback is shown, and never stops the reader."""
    try:
        work(*args)
    except BaseException:  # a subscriber's sys.exit too
        import traceback

        traceback.print_exc()


class Channel:
    """A framed socket to a rank. The reader thread reads and writes it, and never blocks in that."""

    def __init__(self, hub: Hub, sock: socket.socket, on_frame: Callable[[wire.Frame], None]) -> None:
        self._hub, self.sock, self._on_frame = hub, sock, on_frame
        self._frames = wire.Frames()
        self._backlog: deque[memoryview] = deque()
        self.closed = False
        sock.setblocking(False)
        hub.post(self._listen)

    def _listen(self) -> None:
        if not self.closed:
            events = select.POLLIN | (select.POLLOUT if self._backlog else 0)
            self._hub.watch(self.sock, events, self._ready)

    def send(self, kind: int, meta: Any, body: bytes | memoryview = b"") -> None:
        """Any thread."""
        frame = wire.pack(kind, meta, body)
        self._hub.post(lambda: self.send_packed(frame))

    def send_packed(self, frame: list[bytes | memoryview]) -> None:
        """Reader thread only. A frame that goes to several ranks is packed only once."""
        waits = bool(self._backlog)
        self._backlog.extend(map(memoryview, frame))
        if not waits:
            self._push()
            if self._backlog:
                self._listen()

    def _push(self) -> None:
        try:
            while self._backlog:
                sent = self.sock.send(self._backlog[0])
                if sent == len(self._backlog[0]):
                    self._backlog.popleft()
                else:
                    self._backlog[0] = self._backlog[0][sent:]
        except BlockingIOError:
            pass
        except OSError:  # the rank is gone: its death is reported by the fork server
            self._backlog.clear()

    def _ready(self) -> None:
        if self._backlog:
            self._push()
            self._listen()
        self.drain()

    def drain(self) -> None:
        """Reader thread only: take in all that has arrived."""
        while not self.closed:
            try:
                count = self.sock.recv_into(self._hub.memory)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                return self.close()
            for frame in self._frames.feed(self._hub.memory[:count]):
                quietly(self._on_frame, frame)
            if count < READ:
                return

    def close(self) -> None:
        """Reader thread only."""
        if not self.closed:
            self.closed = True
            self._hub.forget(self.sock)
            self.sock.close()


def send_to_all(channels: Iterable[Channel], frame: list[bytes | memoryview], told: list[int]) -> bool:
    """Any thread: a small frame to ranks that have read all before; False for a large one. ``told`` gets a number for each.

    The loop over the ranks runs in C, and an interrupt waits for the next line of Python: all ranks are told, or none.
    """
    if len(frame) > 1 or len(frame[0]) > SMALL:
        return False
    sockets = [channel.sock for channel in channels]
    left = iter(sockets)
    for _ in sockets:
        with contextlib.suppress(OSError):  # one is gone, as the fork server will report: go on with those left
            told.extend(map(socket.socket.send, left, itertools.repeat(frame[0])))
            break
    return True


class Pipe:
    """The read end of a rank's standard output or error: bytes, as they come."""

    def __init__(self, hub: Hub, fd: int, on_bytes: Callable[[bytes], None]) -> None:
        self._hub, self._fd, self._on_bytes = hub, fd, on_bytes
        self.closed = False
        os.set_blocking(fd, False)
        hub.post(self._listen)

    def _listen(self) -> None:
        if not self.closed:
            self._hub.watch(self, select.POLLIN, self.drain)

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> None:
        """Reader thread only: take in all that has arrived."""
        for _ in range(0 if self.closed else PIPES):
            try:
                data = os.read(self._fd, PIPE)
            except BlockingIOError:
                return
            if not data:
                return self.close()
            self._on_bytes(data)

    def close(self) -> None:
        """Reader thread only."""
        if not self.closed:
            self.closed = True
            self._hub.forget(self)
            os.close(self._fd)


_hub: Hub | None = None
_guard = threading.Lock()


def hub() -> Hub:
    """The kernel's only hub, started when first needed."""
    global _hub
    with _guard:
        if _hub is None:
            _hub = Hub()
        return _hub


def _forget_in_child() -> None:
    """A forked child of the kernel has no reader thread, and must not hold the ranks' lifelines open."""
    global _hub, _guard
    _guard = threading.Lock()
    old, _hub = _hub, None
    if old is not None:
        old.is_lost = True
        for fd, (file, _) in list(old._watched.items()):
            if isinstance(file, socket.socket):
                file.detach()  # its own clean-up must not close a number that is in use again
            with contextlib.suppress(OSError):
                os.close(fd)


os.register_at_fork(after_in_child=_forget_in_child)

"""The one thread of the kernel that reads from the ranks, and writes what could not be written at once."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from course.ranks import wire

TICK = 0.1  # seconds between two looks at time limits and hangs
READ = 1 << 20  # bytes taken from a socket at once
PIPE = 1 << 16  # bytes that a pipe holds


class Hub:
    """Watches file descriptors and calls back, always from its own thread.

    ``post`` may be called from anywhere, a finalizer included: it takes no lock.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._ears, self._bell = socket.socketpair()
        self._ears.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._ears, selectors.EVENT_READ, self._hear)
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

    def watch(self, fd: Any, events: int, callback: Callable[[], None]) -> None:
        """Reader thread only: call ``callback`` when ``fd`` is ready for ``events``; 0 stops watching."""
        known = fd in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(fd)
        elif known:
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._ears.recv(4096):
                pass
        while self._posted:
            quietly(self._posted.popleft())

    def _loop(self) -> None:
        due = 0.0
        while True:
            ready = self._selector.select(TICK if self.tickers else None)
            for key, _ in ready:
                if self._is_watched(key):  # an earlier callback may have closed it
                    quietly(key.data)
            due = self._tick(due)

    def _is_watched(self, key: selectors.SelectorKey) -> bool:
        try:
            return key.fileobj in self._selector.get_map()
        except ValueError:  # a closed socket has no descriptor to look up
            return False

    def _tick(self, due: float) -> float:
        from minipar.trace import now

        if now() < due:
            return due
        for ticker in list(self.tickers):
            quietly(ticker)
        return now() + TICK


def quietly(work: Callable[[], None]) -> None:
    """A fault in a callback is shown, and never stops the reader."""
    try:
        work()
    except Exception:
        import traceback

        traceback.print_exc()


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """A keyboard interrupt during the enclosed lines is raised after them. Only the main thread ever gets one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:
        signal.raise_signal(signal.SIGINT)


class Channel:
    """A framed socket to a rank: reads in the hub's thread, writes from any thread without ever blocking it."""

    def __init__(self, hub: Hub, sock: socket.socket, on_frame: Callable[[wire.Frame], None]) -> None:
        self._hub, self._sock, self._on_frame = hub, sock, on_frame
        self._frames = wire.Frames()
        self._backlog: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self.closed = False
        sock.setblocking(False)
        hub.post(self._listen)

    def _listen(self) -> None:
        if not self.closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._backlog else 0)
            self._hub.watch(self._sock, events, self._ready)

    def send(self, kind: int, meta: Any, body: bytes | memoryview = b"") -> None:
        self.send_packed(wire.pack(kind, meta, body))

    def send_packed(self, frame: list[bytes | memoryview]) -> None:
        """A frame that goes to several ranks is packed only once."""
        pieces = [memoryview(piece) for piece in frame]
        with self._lock:
            waiting = bool(self._backlog)
            self._backlog.extend(pieces)
            if not waiting:
                self._push()
            if self._backlog and not waiting:
                self._hub.post(self._listen)

    def _push(self) -> None:
        try:
            while self._backlog:
                sent = self._sock.send(self._backlog[0])
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
            with self._lock:
                self._push()
            self._listen()
        self.drain()

    def drain(self) -> None:
        """Reader thread only: take in all that has arrived."""
        while not self.closed:
            try:
                count = self._sock.recv_into(self._hub.memory)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                return self.close()
            for frame in self._frames.feed(self._hub.memory[:count]):
                quietly(lambda frame=frame: self._on_frame(frame))  # type: ignore[misc]
            if count < READ:
                return

    def close(self) -> None:
        """Reader thread only."""
        if not self.closed:
            self.closed = True
            self._hub.watch(self._sock, 0, self._ready)
            self._sock.close()


class Pipe:
    """The read end of a rank's standard output or error: bytes, as they come."""

    def __init__(self, hub: Hub, fd: int, on_bytes: Callable[[bytes], None]) -> None:
        self._hub, self._fd, self._on_bytes = hub, fd, on_bytes
        self.closed = False
        os.set_blocking(fd, False)
        hub.post(self._listen)

    def _listen(self) -> None:
        if not self.closed:
            self._hub.watch(self._fd, selectors.EVENT_READ, self.drain)

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> None:
        """Reader thread only: take in all that has arrived."""
        while not self.closed:
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
            self._hub.watch(self._fd, 0, self.drain)
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
        for key in list(old._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.detach()  # its own clean-up must not close a number that is in use again
            with contextlib.suppress(OSError):
                os.close(key.fd)


os.register_at_fork(after_in_child=_forget_in_child)

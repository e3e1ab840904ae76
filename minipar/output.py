"""What a command prints, where nobody may read it any more (``| head``) and the disk may be full."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

UNREAD = 128 + signal.SIGPIPE  # what a shell says of other programs whose reader has gone


@contextmanager
def may_go_unread() -> Iterator[None]:
    """Where standard output or error cannot be written, end the program: without a word if the reader has gone, else with one."""
    with redirect_stdout(_watched(sys.stdout)), redirect_stderr(_watched(sys.stderr)):
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # what is small is refused only now


def _watched(stream: TextIO | None) -> Any:
    return None if stream is None else _Watched(stream)  # None: it was closed from the start


class _Watched:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._tried(self._stream.write, text))

    def flush(self) -> None:
        self._tried(self._stream.flush)

    def _tried(self, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except OSError as error:
            if threading.current_thread() is not threading.main_thread():
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # Python flushes once more at its end
            if isinstance(error, BrokenPipeError):
                raise SystemExit(UNREAD) from None
            if self is not sys.stderr:
                print(f"standard output cannot be written: {error.strerror}", file=sys.stderr)
            raise SystemExit(1) from None

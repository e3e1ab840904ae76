"""Where a process looks for modules and files: a rank sees what the kernel sees, whatever the function before has changed."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys


def packed() -> bytes:
    """Of this process. A rank that has read the same bytes before need not read them again."""
    return pickle.dumps((sys.path, working_folder()), protocol=5)


def working_folder() -> str:
    """Of this process; the root where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


class Surroundings:
    """Those of the kernel, in a rank."""

    def __init__(self) -> None:
        self._packed = b""
        self._path: list[str] = []
        self._folder = ""

    def adopt(self, packed: bytes) -> None:
        if packed != self._packed:
            self._packed, (self._path, self._folder) = packed, pickle.loads(packed)
        if sys.path != self._path:
            sys.path[:] = self._path
        if working_folder() != self._folder:
            with contextlib.suppress(OSError):
                os.chdir(self._folder)


def adopt_environment(variables: dict[str, str | None]) -> None:
    """Set variables; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

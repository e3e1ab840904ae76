"""Files and folders that are there whole, or not at all: written under another name, and renamed when they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from minipar.checks import RefusedError

MARK = ".unfinished-"


def marked(path: Path) -> Path:
    """The name of ``path`` until it is complete."""
    return path.with_name(MARK + path.name)


def whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have ``write`` write a file. Raises RefusedError where it cannot, and leaves nothing then."""
    special = path.exists() and not path.is_file()  # such as /dev/stdout
    unfinished = path if special else marked(path)
    try:
        write(unfinished)
        if not special:
            os.replace(unfinished, path)
    except BaseException as e:
        if not special:
            unfinished.unlink(missing_ok=True)
        if isinstance(e, OSError):
            raise RefusedError(f"cannot write {path}: {e.strerror}") from e
        raise


def sweep(folder: Path) -> None:
    """Remove what a killed run left unfinished, files and folders. Nobody may be writing there meanwhile."""
    for path in folder.glob(f"{MARK}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove a folder that was complete: first its name, so that half of it is never taken for the whole."""
    folder.rename(marked(folder))
    shutil.rmtree(marked(folder), ignore_errors=True)


def on_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk and not just on their way."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The folder of this kernel's ranks, the record of its processes, and the clean-up after a crash.

Everything lives in ``<temporary folder>/minipar-<user>/<kernel>-<random>/``, mode 0700: the rendezvous files, the slots, and
``record.json`` with the process ids. A process id is only believed together with the time its process started.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

_lock = threading.Lock()
_record: dict[str, Any] = {}
_home: Path | None = None


def base() -> Path:
    """The folder of all of this user's kernels. Refuses one that someone else could write to."""
    path = Path(tempfile.gettempdir()) / f"minipar-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise RuntimeError(f"{path} belongs to someone else; set TMPDIR to a folder of your own")
    if info.st_mode & 0o077:
        path.chmod(0o700)
    return path


def home() -> Path:
    """The folder of this kernel, made when first asked for."""
    global _home
    with _lock:
        if _home is None or _record.get("kernel", [0])[0] != os.getpid():
            _home = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=base()))
            _record.clear()
            _record.update(kernel=identity(os.getpid()), server=None, ranks={})
            _save()
            atexit.register(_remove, os.getpid(), _home)
        return _home


def _remove(pid: int, path: Path) -> None:
    """At exit, after the fork server was stopped. A rank that is being killed may still make a file: try again."""
    for _ in range(100 if os.getpid() == pid else 0):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.02)


def identity(pid: int) -> list[Any] | None:
    """``[pid, when it started]``: the same for the same process only. None if there is no such process."""
    try:
        return [pid, round(_started(pid), 2)]
    except (psutil.Error, OSError):
        return None


def _started(pid: int) -> float:
    """Clock ticks since boot on Linux (no clock adjustment changes them), seconds since the epoch elsewhere."""
    path = Path(f"/proc/{pid}/stat")
    if path.exists():
        return float(path.read_text().rpartition(")")[2].split()[19])
    return psutil.Process(pid).create_time()


def record_server(pid: int) -> None:
    home()
    with _lock:
        _record["server"] = identity(pid)
        _save()


def record_ranks(pool: str, pids: list[int]) -> None:
    """Note the processes of one pool; an empty list forgets it."""
    with _lock:
        _record["ranks"].pop(pool, None)
        if pids:
            _record["ranks"][pool] = [identity(pid) for pid in pids]
        _save()


def _save() -> None:
    if _home is not None:
        draft = _home / "record.tmp"
        with contextlib.suppress(FileNotFoundError):  # the folder goes away at exit
            draft.write_text(json.dumps(_record))
            draft.replace(_home / "record.json")


def clean() -> list[str]:
    """End ranks left behind by kernels that are gone, and remove their folders. Returns a line for each thing done."""
    done = []
    for folder in sorted(p for p in base().iterdir() if p.is_dir()):
        record = _read(folder)
        if record is not None and _alive(record.get("kernel")):
            continue
        if record is None and _alive_by_name(folder):
            continue  # just being made
        left = f"left by kernel {folder.name.partition('-')[0]}"
        for pid, _ in _processes(record or {}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                done.append(f"ended process {pid}, {left}")
        shutil.rmtree(folder, ignore_errors=True)
        done.append(f"removed {folder}, {left}")
    return done


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / "record.json").read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _alive(recorded: list[Any] | None) -> bool:
    """Whether the very process that was recorded still runs."""
    if not recorded or identity(recorded[0]) != recorded:
        return False
    with contextlib.suppress(psutil.Error):
        return psutil.Process(recorded[0]).status() != psutil.STATUS_ZOMBIE
    return False


def _alive_by_name(folder: Path) -> bool:
    pid = folder.name.partition("-")[0]
    return pid.isdecimal() and psutil.pid_exists(int(pid))


def _processes(record: dict[str, Any]) -> list[list[Any]]:
    """The recorded server and ranks that still run: ranks first."""
    ranks = [one for pool in record.get("ranks", {}).values() for one in pool]
    return [one for one in (*ranks, record.get("server")) if _alive(one)]

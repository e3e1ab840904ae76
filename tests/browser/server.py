"""A JupyterLab of its own for the browser tests: loopback, a free port, a copy of the notebooks, nothing of the user's."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from course import lab
from tests.ports import free_port

STARTS_WITHIN = 120  # seconds


class Server(NamedTuple):
    """A running JupyterLab: where it listens, the token it wants, the folder it shows."""

    url: str
    token: str
    folder: Path
    pid: int
    settings: Path  # the user's settings of JupyterLab

    def write(self, name: str, *sources: str) -> str:
        """Store a notebook of these code cells below the served folder; returns its path there."""
        notebook = new_notebook(cells=[new_code_cell(source.strip()) for source in sources])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)
        return name


@contextmanager
def serve(home: Path) -> Iterator[Server]:
    """Start JupyterLab as ``minipar lab`` does, on a copy of ``notebooks/`` below ``home``; stop it and its kernels after."""
    folder = home / "work"
    shutil.copytree(lab.root() / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    port, token = free_port(), secrets.token_hex(16)
    line = [*lab.command(folder, "notebooks", port=port), "--LabApp.expose_app_in_browser=True"]
    log = home / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(line, env=_environment(home, token), stdout=out, stderr=subprocess.STDOUT, cwd=folder)
    try:
        settings = Path(_environment(home, token)["JUPYTERLAB_SETTINGS_DIR"])
        server = Server(f"http://127.0.0.1:{port}", token, folder, process.pid, settings)
        try:
            await_answer(f"{server.url}/api/status?token={token}", process)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{log.read_text(errors='replace')[-3000:]}") from None
        yield server
    finally:
        process.terminate()  # a first SIGTERM shuts the kernels down in order
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(home: Path, token: str) -> dict[str, str]:
    own = {
        name: str(home / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    own["JUPYTERLAB_SETTINGS_DIR"] = own["JUPYTERLAB_WORKSPACES_DIR"] = own["JUPYTER_CONFIG_DIR"]
    return {**lab.environment(), **own, "JUPYTER_TOKEN": token}


def await_answer(url: str, process: subprocess.Popen[Any], within: float = STARTS_WITHIN) -> bytes:
    """What ``url`` answers, asked until it does: JupyterLab prints its address before it listens there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy
    deadline = time.monotonic() + within
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(url, timeout=10) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no answer from JupyterLab within {within} s (exit code {process.poll()})")

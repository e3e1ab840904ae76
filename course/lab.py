"""``minipar lab``: JupyterLab on the first lesson, for this machine alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from course.browser import can_show_a_browser

SETTINGS = Path(__file__).parent / "jupyter"  # settings that are laid under the user's own: no news popup


def root() -> Path:
    """The folder that JupyterLab shows: the one that holds ``notebooks/``."""
    return Path(__file__).resolve().parent.parent


def first_lesson() -> str:
    """The path of lesson 0 below ``root()``."""
    lessons = sorted((root() / "notebooks").glob("[0-9][0-9]-*.ipynb"))
    if not lessons:
        raise FileNotFoundError(
            f"no lesson in {root() / 'notebooks'}: the lessons come with the repository; clone it, and run `make lab` there"
        )
    return lessons[0].relative_to(root()).as_posix()


def environment() -> dict[str, str]:
    """The environment of a JupyterLab that shows minipar: the user's, with the course's settings laid under it."""
    below = os.environ.get("JUPYTER_CONFIG_PATH")
    return {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join([str(SETTINGS), *([below] if below else [])])}


def command(folder: Path, opens: str, *, port: int | None = None, browser: bool = False) -> list[str]:
    """The command that serves ``folder`` on loopback, with a token, and starts with ``opens`` (a path below ``folder``)."""
    line = [sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}"]
    line += [f"--LabApp.default_url=/lab/tree/{opens}", f"--ServerApp.open_browser={browser}"]
    if port is not None:
        line += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        line += ["--allow-root"]  # in a container there is no other user
    return line


def main(options: list[str]) -> int:
    """Replace this process by JupyterLab on lesson 0; ``options`` go to it as they are."""
    try:
        line = command(root(), first_lesson(), browser=can_show_a_browser()) + options
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    if not can_show_a_browser():
        print("No browser can be opened from here. Open the URL with the token, printed below, in a browser on this machine;")
        print("from another one, first forward the port: ssh -L 8888:127.0.0.1:8888 THIS-MACHINE", flush=True)
    os.execve(line[0], line, environment())

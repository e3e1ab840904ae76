"""Fetch a Chromium for the browser tests, where the system has none: ``python -m tests.browser.chromium``."""

from __future__ import annotations

import subprocess
import sys

from course.browser import find_chromium

MISSING = (
    "no Chromium: install one (Debian: apt install chromium), name one in MINIPAR_CHROMIUM, "
    "or run `.venv/bin/python -m playwright install chromium`"
)


def fetch() -> None:
    """Ask Playwright for its Chromium, once. Without a network the browser tests will be skipped, and say why."""
    if find_chromium():
        return
    done = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False, timeout=600)
    if done.returncode:
        print(f"The browser tests will be skipped: {MISSING}.")


if __name__ == "__main__":
    fetch()

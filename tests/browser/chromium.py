"""The Chromium of the browser tests: fetched where the system has none (``python -m tests.browser.chromium``), or missed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

import pytest

from course.browser import find_chromium

MISSING = (
    "no Chromium: install one (Debian: apt install chromium), name one in MINIPAR_CHROMIUM, "
    "or run `.venv/bin/python -m playwright install chromium`"
)


def unavailable(reason: str) -> NoReturn:
    """Without a browser the browser tests are skipped, and say why; continuous integration must have one."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{reason}; CI is set, and there a browser is required", pytrace=False)
    pytest.skip(reason)


def fetch() -> None:
    """Ask Playwright for its Chromium, once. Without a network the browser tests will be skipped, and say why."""
    if find_chromium():
        return
    done = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False, timeout=600)
    if done.returncode:
        print(f"The browser tests will be skipped: {MISSING}.")


if __name__ == "__main__":
    fetch()

"""Which browsers this machine has: one to show a person JupyterLab, and a Chromium for the browser tests."""

from __future__ import annotations

import os
import shutil
import sys
import webbrowser
from pathlib import Path

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_CHROME = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
CHROMIUM_VARIABLE = "MINIPAR_CHROMIUM"


def can_show_a_browser() -> bool:
    """Whether a window can be opened here. A text browser in this terminal does not count: it would sit on JupyterLab's output."""
    if sys.platform != "darwin" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        return not isinstance(webbrowser.get(), webbrowser.GenericBrowser) or bool(os.environ.get("BROWSER"))
    except webbrowser.Error:
        return False


def system_chromium() -> str | None:
    """The path of an installed Chromium or Chrome; ``MINIPAR_CHROMIUM`` names one that is to be used."""
    chosen = os.environ.get(CHROMIUM_VARIABLE)
    if chosen:
        return chosen
    found = next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    return found or (str(MAC_CHROME) if MAC_CHROME.exists() else None)


def playwright_chromium() -> str | None:
    """The path of the Chromium that ``playwright install chromium`` has fetched, or None."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def find_chromium() -> str | None:
    """A Chromium for the browser tests: the system's own first, else Playwright's."""
    return system_chromium() or playwright_chromium()

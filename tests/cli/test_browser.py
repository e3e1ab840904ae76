"""Finding a browser: a named one, then the system's; and what a missing one means."""

from pathlib import Path

import pytest

from course import browser
from tests.browser.chromium import unavailable


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(browser.CHROMIUM_VARIABLE, raising=False)
    monkeypatch.setattr(browser, "MAC_CHROME", tmp_path / "none")
    return tmp_path


def install(folder: Path, name: str) -> str:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_chromium_comes_before_chrome(programs: Path) -> None:
    assert browser.system_chromium() is None
    chrome = install(programs, "google-chrome")
    assert browser.find_chromium() == chrome
    chromium = install(programs, "chromium")
    assert browser.find_chromium() == chromium


def test_the_named_one_comes_first(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(programs, "chromium")
    monkeypatch.setenv(browser.CHROMIUM_VARIABLE, "/opt/mine/chrome")
    assert browser.find_chromium() == "/opt/mine/chrome"


def test_playwrights_own_is_the_last_resort(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(programs / "fetched"))
    assert browser.find_chromium() is None
    monkeypatch.setattr(browser, "playwright_chromium", lambda: "/fetched/chromium")
    assert browser.find_chromium() == "/fetched/chromium"


def test_a_missing_browser_skips_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        unavailable("no Chromium")


def test_a_missing_browser_fails_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Chromium; CI is set"):
        unavailable("no Chromium")


def test_no_window_can_be_opened_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BROWSER", "w3m")  # a browser in the terminal is no window
    assert not browser.can_show_a_browser()

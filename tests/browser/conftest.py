"""``lab`` (one server for all browser tests) and ``lab_page`` (a tab on it). Every test here is marked ``browser``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Error, expect, sync_playwright

from course.browser import find_chromium
from tests.browser.chromium import MISSING, unavailable
from tests.browser.labpage import PATIENCE, LabPage
from tests.browser.server import Server, serve

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
HERE = Path(__file__).parent
expect.set_options(timeout=PATIENCE * 1000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(600), append=False)  # the first test also starts the server


@pytest.fixture(scope="package")  # not longer: Playwright's loop runs in this thread, and other tests need theirs
def browser() -> Iterator[BrowserContext]:
    """One for all tests of this folder, so that JupyterLab's code is fetched and read once."""
    chromium = find_chromium()
    if chromium is None:
        unavailable(MISSING)
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        except Error as error:
            unavailable(f"{chromium} does not start: {str(error).splitlines()[0]}")
        yield started.new_context(viewport={"width": 1280, "height": 900})
        started.close()


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture
def lab(browser: BrowserContext, request: pytest.FixtureRequest) -> Server:
    """The server; not started where there is no browser."""
    return request.getfixturevalue("_server")


@pytest.fixture
def lab_page(browser: BrowserContext, lab: Server, request: pytest.FixtureRequest) -> Iterator[LabPage]:
    """A fresh tab; what it shows at the end of the test is kept in ``artifacts/``."""
    page = LabPage(browser.new_page(), lab, re.sub(r"[^\w.-]+", "-", request.node.name))
    yield page
    page.screenshot()
    page.close()
    page.page.close()

"""A person at JupyterLab: opens a notebook, runs it, moves sliders by keyboard, looks at the result."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from tests.browser.server import Server

PATIENCE = 60  # seconds for whatever must come about, on however busy a machine
ARTIFACTS = Path(__file__).parents[2] / "artifacts"

# `[data-status=idle]` shows before a session can be used; only the session context itself knows.
OPEN = """async (path) => {
    const app = window.jupyterapp;
    await app.restored;
    const panel = await app.commands.execute('docmanager:open', {path, factory: 'Notebook'});
    await panel.context.ready;
    await panel.sessionContext.ready;
    await panel.sessionContext.session.kernel.info;
    app.commands.execute('application:set-mode', {mode: 'single-document'});
    window.minipar = panel;
    return panel.sessionContext.session.kernel.name;
}"""

RUN_ALL = """() => {
    window.miniparRun = {done: false, ok: null};
    window.jupyterapp.commands.execute('notebook:run-all-cells').then(
        (ok) => { window.miniparRun = {done: true, ok}; },
        (error) => { window.miniparRun = {done: true, ok: false, error: String(error)}; });
}"""

CELLS = """() => Array.from(window.minipar.content.model.cells).map((cell) => ({
    type: cell.type,
    source: cell.sharedModel.getSource(),
    count: cell.executionCount ?? null,
    outputs: cell.type === 'code' ? cell.sharedModel.getOutputs() : [],
}))"""

EXECUTE = "async (code) => { await window.minipar.sessionContext.session.kernel.requestExecute({code}).done; }"

# Notes what a lab says and how its picture describes itself, in the order of Python's messages, whatever is drawn of them.
DIARY = """(output) => {
    const diary = window.miniparDiary = [];
    const note = (kind, text) => { if (text && diary.at(-1)?.[1] !== text) diary.push([kind, text]); };
    new MutationObserver((changes) => {
        for (const { target, type } of changes) {
            if (type === 'attributes') note('picture', target.ariaLabel);
            else if (target.nodeType === 1) note('status', target.querySelector('[role=status]')?.textContent);
        }
    }).observe(output, { subtree: true, childList: true, attributes: true, attributeFilter: ['aria-label'] });
}"""


class LabPage:
    """One browser tab on the test server. ``problems`` collects what the browser's console calls an error."""

    def __init__(self, page: Page, server: Server, name: str) -> None:
        self.page = page
        self.server = server
        self.name = name
        self.problems: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{message.text} ({message.location.get('url', '')})")

    def open(self, notebook: str, timeout: float = PATIENCE) -> None:
        """Open ``notebook`` (a path below the served folder) and wait until its kernel can be used."""
        self.page.set_default_timeout(timeout * 1000)
        self.page.goto(f"{self.server.url}/lab?token={self.server.token}&reset", wait_until="domcontentloaded")
        self.page.wait_for_function("() => window.jupyterapp !== undefined")
        self.page.evaluate(OPEN, notebook)

    def execute(self, code: str) -> None:
        """Have the notebook's kernel run ``code``, as if it stood in a cell."""
        self.page.evaluate(EXECUTE, code)

    def until(self, condition: Callable[[], Any], what: str = "it") -> None:
        """Wait until ``condition`` holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about within {PATIENCE} s"
            self.page.wait_for_timeout(50)

    def start_diary(self, output: Locator) -> None:
        """From now on note the states of the lab in ``output``; see ``diary``."""
        output.evaluate(DIARY)

    def diary(self) -> list[tuple[str, str]]:
        """("status", what the lab says) and ("picture", how a picture describes itself), in order."""
        return [(kind, text) for kind, text in self.page.evaluate("() => window.miniparDiary")]

    def close(self) -> None:
        """End the kernel of the notebook, with the ranks it started."""
        self.page.evaluate("async () => { await window.minipar?.sessionContext.shutdown(); }")

    def run_all(self) -> None:
        """Start all cells, from the first to the last, and come back at once."""
        self.page.evaluate(RUN_ALL)

    def wait_idle(self, timeout: float = 200) -> None:
        """Wait until all cells that ``run_all`` started are done. Raises if a cell failed, with its error."""
        self.page.wait_for_function("() => window.miniparRun.done", timeout=timeout * 1000)
        outcome = self.page.evaluate("() => window.miniparRun")
        failed = self.errors()
        if failed or not outcome["ok"]:
            raise AssertionError("a cell failed:\n" + ("\n".join(failed) or str(outcome)))

    def cells(self) -> list[dict[str, Any]]:
        """``{type, source, count, outputs}`` of every cell, as the notebook's model has them now."""
        return list(self.page.evaluate(CELLS))

    def errors(self) -> list[str]:
        """The errors that cells show, ``name: value``, one a line."""
        outputs = [output for cell in self.cells() for output in cell["outputs"]]
        return [f"{o['ename']}: {o['evalue']}" for o in outputs if o["output_type"] == "error"]

    def slider(self, label: str) -> Locator:
        """The handle of the slider with this label; the keyboard moves it once it has the focus."""
        return self._row(label).locator(".noUi-handle").first

    def _row(self, label: str) -> Locator:
        return self.page.locator(".widget-slider").filter(has=self.page.get_by_text(label, exact=True))

    def press(self, target: Locator, key: str, times: int = 1) -> None:
        """Give ``target`` the focus and press ``key`` ("ArrowRight"), as a person without a mouse would."""
        target.scroll_into_view_if_needed()
        target.focus()
        for _ in range(times):
            self.page.keyboard.press(key)

    def expect_readout(self, label: str, number: str) -> None:
        """The slider with this label shows this number beside it."""
        expect(self._row(label).locator(".widget-readout").first).to_have_text(number)

    def button(self, label: str) -> Locator:
        return self.page.locator("button.jupyter-button", has_text=label).first

    def look(self, target: Locator) -> str:
        """A digest of what ``target`` looks like now: it differs when the picture does."""
        target.scroll_into_view_if_needed()
        return hashlib.sha256(target.screenshot(animations="disabled")).hexdigest()

    def wait_for_change(self, target: Locator, before: str) -> str:
        """Wait until ``target`` looks different from ``before``; returns its new digest."""
        seen = [before]

        def changed() -> bool:
            seen.append(self.look(target))
            return seen[-1] != before

        self.until(changed, "a change of the picture")
        return seen[-1]

    def screenshot(self, name: str = "") -> Path:
        """Keep a picture of the page in ``artifacts/``, for a person to look at."""
        path = ARTIFACTS / f"{self.name}{'-' + name if name else ''}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path)
        return path

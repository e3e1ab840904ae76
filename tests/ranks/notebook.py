"""A real Jupyter kernel to run cells in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

LIMIT = 60


@dataclass
class Shown:
    """What one cell showed."""

    out: str = ""
    err: str = ""
    result: str = ""
    error: str = ""  # its name
    traceback: str = ""
    done: bool = False


class Notebook:
    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self._shown: dict[str, Shown] = {}  # by the id of the request

    def post(self, code: str, subshell: str | None = None) -> str:
        """Send a cell and return the id of the request. A cell that fails aborts none of those behind it."""
        message = self.client.session.msg("execute_request", {"code": code, "silent": False, "store_history": True})
        message["content"] |= {"user_expressions": {}, "allow_stdin": False, "stop_on_error": False}
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def collect(self, request: str) -> Shown:
        """Everything that the cell shows until it is done; cells may end in any order."""
        deadline = time.monotonic() + LIMIT
        while not self._of(request).done:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cell did not end; it showed {self._of(request)}")
            message = self.client.get_iopub_msg(timeout=LIMIT)
            _take(message, self._of(message["parent_header"].get("msg_id", "")))
        return self._shown.pop(request)

    def _of(self, request: str) -> Shown:
        return self._shown.setdefault(request, Shown())

    def run(self, code: str, subshell: str | None = None) -> Shown:
        return self.collect(self.post(code, subshell))

    def wait_for(self, code: str, subshell: str | None = None) -> None:
        """Wait until an expression becomes true in the kernel."""
        for _ in range(LIMIT * 20):
            if self.run(code, subshell).result == "True":
                return
            time.sleep(0.05)
        raise TimeoutError(code)

    def subshell(self) -> str:
        """A second thread of the kernel that takes requests, as JupyterLab opens for widgets."""
        message = self.client.session.msg("create_subshell_request")
        self.client.control_channel.send(message)
        while True:
            reply = self.client.control_channel.get_msg(timeout=LIMIT)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply["content"]["subshell_id"]

    @cached_property
    def watcher(self) -> str:
        """A subshell to look from while a cell holds the main thread."""
        return self.subshell()

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    @property
    def pid(self) -> int:
        return self.manager.provisioner.process.pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)


def _take(message: dict[str, Any], shown: Shown) -> None:
    content = message["content"]
    if message["msg_type"] == "stream":
        if content["name"] == "stdout":
            shown.out += content["text"]
        else:
            shown.err += content["text"]
    elif message["msg_type"] == "execute_result":
        shown.result = content["data"]["text/plain"]
    elif message["msg_type"] == "error":
        shown.error, shown.traceback = content["ename"], "\n".join(content["traceback"])
    elif message["msg_type"] == "status":
        shown.done = content["execution_state"] == "idle"


@contextmanager
def notebook() -> Iterator[Notebook]:
    book = Notebook()
    try:
        yield book
    finally:
        book.client.stop_channels()
        book.manager.shutdown_kernel(now=True)


def gone(processes: list[psutil.Process], seconds: float = 10) -> bool:
    """Whether all of them end within ``seconds``."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive

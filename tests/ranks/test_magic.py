"""What ``%%ranks`` says of a cell that only the notebook itself could run, and what a notebook starts when it imports ``Ranks``."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import IPython
import pytest

from course.ranks import magic, ranks


@pytest.mark.parametrize("line", ["%time f()", "!ls", "%%time", "    %time f()"])
def test_a_line_for_the_notebook_is_refused_with_its_remedy(line):
    with pytest.raises(SyntaxError, match="plain Python: put lines that begin with % or ! into a cell of their own") as caught:
        magic.ranks_cell("", f"if True:\n    x = 1\n{line}")
    assert caught.value.lineno == 3


@pytest.mark.parametrize("line", ["await f()", "async with f: pass", "async for x in f: pass", "[x async for x in f]"])
def test_a_top_level_await_is_refused_with_its_remedy(line):
    with pytest.raises(SyntaxError, match=r"write asyncio.run\(\.\.\.\) instead"):
        magic.ranks_cell("", line)


def test_any_other_syntax_error_is_told_as_python_tells_it():
    with pytest.raises(SyntaxError, match=r"^'\(' was never closed"):
        magic.ranks_cell("", "print(")


def test_a_fork_server_that_cannot_start_yet_spoils_no_import(monkeypatch):
    """A temporary folder of someone else, or no room for a thread: whoever makes ranks is told."""
    monkeypatch.setattr(IPython, "get_ipython", SimpleNamespace)
    monkeypatch.setattr(magic, "register", lambda shell: None)

    tried = []

    def refuse():
        tried.append("to start")
        raise RuntimeError("belongs to someone else")

    monkeypatch.setattr(ranks, "fork_server", refuse)
    ranks._announce()
    assert tried == ["to start"]


@pytest.mark.parametrize(("opening", "starts"), [("IPython.get_ipython()", False), ("InteractiveShell.instance()", True)])
def test_a_notebook_that_imports_ranks_starts_the_fork_server_while_it_goes_on_and_a_program_does_not(opening, starts):
    opening = f"import IPython; from IPython.core.interactiveshell import InteractiveShell; {opening}"
    code = f"{opening}; from course import Ranks; from course.ranks import server; print(server._server is not None)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True).stdout
    assert out.strip() == str(starts)

"""A learner's own file that has the name of a library is named, instead of what it leads to."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from course import namesake
from course.ranks import RankError

PROGRAM = """
import sys
sys.path.insert(0, "")
try:
    {}
except Exception as error:
    print(type(error).__name__, error)
"""
FIRST, THEN = "from course import Ranks", "from course import Ranks; Ranks(2)"


@pytest.mark.parametrize(
    ("name", "cell"),
    [("cloudpickle", FIRST), ("minipar", FIRST), ("select", FIRST), ("queue", FIRST), ("torch", THEN), ("numpy", THEN)],
)
def test_a_file_with_the_name_of_a_library_is_named_before_ranks_start(tmp_path, name, cell):
    path = tmp_path / f"{name}.py"
    path.write_text("x = 1")
    line = [sys.executable, "-c", PROGRAM.format(cell)]
    said = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    why = f"has the name of the library {name!r}, and Python takes it for the library: rename it and restart the kernel"
    assert said == f"ImportError {path} {why}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a notebook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield tmp_path
    sys.modules.pop("wave", None)


def test_a_notebook_is_told_when_it_imports_ranks(folder, monkeypatch):
    from course.ranks import ranks

    (folder / "wave").mkdir()
    (folder / "wave" / "__init__.py").write_text("")
    with pytest.raises(ImportError, match="wave has the name of the library 'wave'"):
        namesake.refuse_namesakes("torch", "wave")
    seen = []
    monkeypatch.setattr(ranks, "refuse_namesakes", lambda *names: seen.append(names))
    monkeypatch.setattr(ranks, "fork_server", lambda: None)
    shell = SimpleNamespace(register_magic_function=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    ranks._announce()
    assert seen == [("torch", "numpy")]


def convert():
    import wave

    return wave.open


def test_a_rank_that_trips_over_it_says_so(folder, ranks):
    (folder / "wave.py").write_text("mine = 1")
    with pytest.raises(RankError) as caught:
        ranks(1).run(convert)
    assert f"{folder / 'wave.py'} has the name of the library 'wave'" in str(caught.value)
    ranks(1).close()  # it has loaded the file


def test_a_function_that_cannot_be_packed_for_that_is_told(folder, ranks, monkeypatch):
    from course.ranks import wire

    (folder / "wave.py").write_text("mine = 1")
    import wave

    monkeypatch.setattr(wire, "dumps", lambda _: wave.open)
    with pytest.raises(ImportError, match="has the name of the library 'wave'"):
        ranks(1).run(len, "two")


def test_other_files_and_mistakes_are_not_blamed(folder):
    (folder / "my_own.py").write_text("")
    for name in ("my_own", "torch", "json", "minipar", "course", "sys", "not_there_at_all"):
        namesake.refuse_namesakes(name)
    import json

    for wrong in (lambda: json.no_such_thing, lambda: __import__("not_there_at_all"), lambda: len.no_such_thing, lambda: 1 / 0):
        with pytest.raises(Exception, match=r"no|zero") as caught:
            wrong()
        assert namesake.behind(caught.value) == ""


def test_a_folder_that_is_gone_blames_nothing(folder):
    folder.rmdir()
    namesake.refuse_namesakes("torch", "json")
    assert namesake.behind(ImportError(name="json")) == ""

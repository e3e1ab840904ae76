"""The ``minipar`` command: quick to answer, each word reaches its own module, mistakes are told in words."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from course import cli, lab
from minipar.trace import COMM, COMPUTE, Span, Timeline


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = "import sys, course.cli\ntry: course.cli.main(['--help'])\nexcept SystemExit: pass\nprint(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert all(f"    {name}  " in out for name in ("doctor", "lab", "run", "trace", "bake", "clean"))
    assert not any(f"'{module}'" in out for module in ("torch", "IPython", "matplotlib", "plotly", "jupyterlab", "psutil"))


@pytest.mark.parametrize(("words", "server"), [("--help", False), ("--dp x", False), ("--dps 1", False), ("--dp 3", True)])
def test_a_run_that_is_not_to_be_is_told_before_torch_is_loaded(words: str, server: bool) -> None:
    """The fork server, which loads torch too, starts first where the words can be read."""
    told = "server.fork_server = lambda: print('started, torch yet:', 'torch' in sys.modules)"
    program = f"import sys; from course import cli; from course.ranks import server; {told}\n"
    program += f"try: cli.main(['run', *{words.split()}])\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert ("started, torch yet: False\n" in out) is server
    assert out.endswith("False\n")


@pytest.mark.parametrize("when", ["course.ranks.server", "torch"])
def test_an_interrupt_ends_a_run_without_a_traceback_while_it_still_loads(when: str) -> None:
    loads = f"class Loads:\n    def find_spec(name, *_):\n        if name == '{when}': raise KeyboardInterrupt"
    program = f"import sys; from course import cli\n{loads}\nsys.meta_path.insert(0, Loads); sys.exit(cli.main(['run']))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["launch"])
    assert caught.value.code == 2
    assert "invalid choice: 'launch'" in capsys.readouterr().err


QUICK = {  # in place of what takes long
    "bake a.ipynb": "from course import bake; bake.bake = lambda paths: paths",
    "doctor": "from course import doctor; doctor.examine = lambda ranks: iter([doctor.Finding('ok', '', '')])",
    "run": "from course import run; run.main = lambda words: print('trained') or 0",
}


@pytest.mark.parametrize("at_an_end", ["no reader", "no room"])
@pytest.mark.parametrize("words", ["--help", "run --help", "trace trace.json", "clean", "bake a.ipynb", "doctor", "run"])
def test_output_that_cannot_be_written_ends_a_command_without_a_traceback(trace: Path, words: str, at_an_end: str) -> None:
    program = f"import sys; from course import cli\n{QUICK.get(words, '')}\nsys.exit(cli.main(sys.argv[1:]))"
    environment = {**os.environ, "TMPDIR": str(trace.parent)}  # nothing to clean
    line = [sys.executable, "-c", program, *words.split()]
    with unwritable(at_an_end) as out:
        ended = subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, cwd=trace.parent, env=environment)
    told = "standard output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == {"no reader": (141, ""), "no room": (1, told)}[at_an_end]


@contextmanager
def unwritable(why: str) -> Iterator[IO[bytes]]:
    """A standard output that is a pipe without a reader, or a full disk."""
    if why == "no room":
        with open("/dev/full", "wb") as full:
            yield full
    else:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            yield pipe


def test_errors_that_cannot_be_told_end_a_command_all_the_same(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "course.cli", "trace", str(tmp_path / "none.json")]
    for why, code in (("no reader", 141), ("no room", 1)):
        with unwritable(why) as error:
            ended = subprocess.run(line, stdout=subprocess.PIPE, stderr=error)
        assert (ended.returncode, ended.stdout) == (code, b"")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    spans = [Span(0, COMPUTE, "F", 0.0, 0.006), Span(0, COMM, "all_reduce", 0.004, 0.008, "dp", 3000)]
    spans += [Span(1, COMPUTE, "F", 0.0, 0.010), Span(1, COMM, "send", 0.001, 0.003), Span(1, COMM, "send", 0.002, 0.004)]
    return Timeline(spans, 2, "paced").to_chrome_trace(tmp_path / "trace.json")


def test_trace_sums_up_what_each_rank_did(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 ranks, 5 spans, 10.000 ms (paced)"
    assert lines[3].replace(" %", "%").split() == ["0", "60.0%", "20.0%", "20.0%", "50.0%", "3,000"]
    assert lines[4].replace(" %", "%").split() == ["1", "100.0%", "0.0%", "0.0%", "100.0%", "0"]
    assert lines[-1] == "bytes by axis, counted: none 0, dp 3,000"


def test_trace_refuses_two_things_at_once_in_a_lane(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(trace.read_text())
    forward = next(e for e in document["traceEvents"] if e["name"] == "F" and e["pid"] == 1)
    document["traceEvents"].append({**forward, "name": "B", "ts": 5000})
    trace.write_text(json.dumps(document))
    assert cli.main(["trace", str(trace)]) == 2
    assert "rank 1, lane 'compute': B starts at 5.000 ms, before F ends at 10.000 ms" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("3", "no list of traceEvents"),
        ('{"traceEvents": []}', "no event with a duration"),
        ('[{"ph": "X", "name": "F", "pid": 0, "ts": 1}]', "event 0 has no usable pid, ts, dur or args"),
        ('[{"ph": "X", "name": "F", "pid": 0, "ts": 1, "dur": -1}]', "negative"),
        ('[{"ph": "X", "name": "F", "pid": 0, "ts": NaN, "dur": 1}]', "impossible pid, ts, dur"),
        ('[{"ph": "X", "name": "F", "pid": 1e12, "ts": 0, "dur": 1}]', "impossible pid"),
        ('[{"ph": "X", "name": "F", "pid": 1e999, "ts": 0, "dur": 1}]', "event 0 has no usable pid"),
        ('[{"ph": "X", "name": "F", "pid": 0, "ts": 0, "dur": 1, "args": 3}]', "event 0 has no usable pid, ts, dur or args"),
        ('[{"ph": "X", "name": "F", "pid": 0, "ts": 0, "dur": 1, "args": {"nbytes": "many"}}]', "event 0 has no usable"),
        ('[{"ph": "M", "name": "thread_name", "pid": 0, "tid": []}]', "event 0 names a thread, and does not say how"),
        ('{"traceEvents": [], "source": "rumour"}', "its source is 'rumour'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_trace_says_what_is_wrong_with_a_file(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert cli.main(["trace", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"minipar trace: {path}: ")
    assert message in said
    assert said.count("\n") == 1


def test_trace_names_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, why in ((tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")):
        assert cli.main(["trace", str(path)]) == 2
        assert capsys.readouterr().err == f"minipar trace: cannot read {path}: {why}\n"


def test_trace_refuses_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert cli.main(["trace", str(path)]) == 2
    assert "not JSON" in capsys.readouterr().err


def test_lab_listens_on_loopback_and_lays_its_settings_under_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/etc/of-the-user")
    line = lab.command(Path("/folder"), "notebooks/00-x.ipynb", port=4321)
    assert "--ServerApp.ip=127.0.0.1" in line
    assert not any("token" in word for word in line)  # JupyterLab makes one; on a command line everyone could read it
    assert lab.environment()["JUPYTER_CONFIG_PATH"] == f"{lab.SETTINGS}:/etc/of-the-user"
    settings = json.loads((lab.SETTINGS / "labconfig" / "default_setting_overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_lab_without_lessons_says_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "root", lambda: tmp_path)
    assert cli.main(["lab"]) == 1
    assert "clone it" in capsys.readouterr().err

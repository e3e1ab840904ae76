"""The same training from a shell in three ways: ``minipar run``, ``torchrun``, and one process alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course import run
from minipar import train

SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--seq", "16", "--rows", "6", "--lr", "0.01", "--steps", "3"]


def shell(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)


def test_minipar_run_and_torchrun_train_the_same(tmp_path: Path, capsys):
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    trace = tmp_path / "trace.json"
    assert run.main([*SMALL, "--ranks", "2", "--json", str(ours), "--trace", str(trace)]) == 0
    seen = capsys.readouterr()
    assert "2 ranks, measured on CPU" in seen.out
    assert "3/3" in seen.err  # the progress bar, at its end
    done = shell(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "minipar.train",
        *SMALL, "--dp", "2", "--json", str(theirs), "--trace", str(tmp_path / "torchrun.json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = json.loads(ours.read_text()), json.loads(theirs.read_text())
    assert first["loss"] == second["loss"]
    assert first["bytes_by_collective"] == second["bytes_by_collective"]
    for file in (trace, tmp_path / "torchrun.json"):
        spans = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
        assert {span["pid"] for span in spans} == {0, 1}
        assert {"F", "B", "all_reduce", "optimizer"} <= {span["name"] for span in spans}


def test_one_process_needs_no_launcher(tmp_path: Path):
    report = tmp_path / "report.json"
    done = shell(sys.executable, "-m", "minipar.train", *SMALL, "--json", str(report))
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["ranks"] == 1


@pytest.mark.parametrize("argv", ["--dp 2", "--rows 0"])
def test_a_refusal_is_one_sentence(argv, capsys):
    assert train.main(argv.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("minipar.train: ")
    assert said.count("\n") == 1

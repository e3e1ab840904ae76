"""The same training from a shell in three ways: ``minipar run``, ``torchrun`` on two hosts, and one process alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from course import run
from minipar import checkpoint, train
from minipar.unfinished import MARK
from tests.ports import free_port

SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--seq", "16", "--rows", "6", "--lr", "0.01"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def agents(hosts: int, *arguments: str) -> list[subprocess.Popen[str]]:
    """One torchrun agent for each host; each starts one rank, and they find each other at a port of this machine."""
    port = free_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [
        subprocess.Popen(
            [*command, "--node-rank", str(host), "-m", "minipar.train", *arguments],
            env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for host in range(hosts)
    ]  # fmt: skip


def test_minipar_run_and_torchrun_on_two_hosts_train_the_same(tmp_path: Path, capsys):
    ours, theirs, trace = (tmp_path / f"{name}.json" for name in ("ours", "theirs", "trace"))
    more = [*SMALL, "--steps", "3", "--evaluate-every", "3"]
    hosts = agents(2, *more, "--dp", "2", "--json", str(theirs), "--trace", str(tmp_path / "torchrun.json"))
    assert run.main([*more, "--ranks", "2", "--json", str(ours), "--trace", str(trace)]) == 0
    seen = capsys.readouterr()
    assert "2 ranks, measured on CPU" in seen.out
    assert "3/3" in seen.err  # the progress bar, at its end
    for host in hosts:
        said = host.communicate(timeout=100)
        assert host.returncode == 0, said
    first, second = json.loads(ours.read_text()), json.loads(theirs.read_text())
    for key in ("loss", "held_out_loss", "bytes_by_collective", "memory", "split", "training", "text"):
        assert first[key] == second[key]
    assert {path.name for path in tmp_path.iterdir()} == {"ours.json", "theirs.json", "trace.json", "torchrun.json"}
    for file in (trace, tmp_path / "torchrun.json"):
        spans = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
        assert {span["pid"] for span in spans} == {0, 1}
        assert {"F", "B", "all_reduce", "optimizer"} <= {span["name"] for span in spans}


def test_one_process_needs_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    report = tmp_path / "report.json"
    assert train.main([*SMALL, "--steps", "2", "--json", str(report)]) == 0
    assert json.loads(report.read_text())["ranks"] == 1


def test_one_process_whose_output_nobody_reads_ends_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    alone = {name: value for name, value in ENVIRONMENT.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    line = [sys.executable, "-m", "minipar.train", *SMALL, "--steps", "1"]
    ended = subprocess.run(line, env=alone, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_an_interrupted_run_leaves_no_process_and_nothing_half_written(tmp_path: Path):
    folder = tmp_path / "run"
    program = "import sys; from course.cli import main; sys.exit(main())"
    arguments = ["run", *SMALL, "--ranks", "2", "--steps", "100000", "--save", str(folder), "--save-every", "1"]
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--json", str(tmp_path / "report.json")],
        env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not (folder.exists() and checkpoint.complete(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    below = psutil.Process(started.pid).children(recursive=True)
    assert len(below) >= 3  # two ranks and their fork server
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(timeout=60) == 130
    assert psutil.wait_procs(below, timeout=60)[1] == []
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.name for path in folder.iterdir() if path.name.startswith(MARK)] == []
    assert (checkpoint.latest(folder) / "progress.json").exists()


@pytest.mark.parametrize("argv", ["--dp 2", "--rows 0", "--json /no/such/folder/report.json"])
def test_a_refusal_is_one_sentence(argv, capsys):
    assert train.main(argv.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("minipar.train: ")
    assert said.count("\n") == 1

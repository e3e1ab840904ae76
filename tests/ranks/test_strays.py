"""Ranks that a crash left behind are found by their records, and nothing else is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest

from course.ranks import strays
from course.ranks.server import last_words


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield strays.base()
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def _leave_record(base, kernel, server=None, ranks=()):
    folder = base / f"{kernel[0]}-abc"
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps({"kernel": kernel, "server": server, "ranks": {"pool-1": list(ranks)}}))
    return folder


DEAD = [2**22 - 1, 1.0]  # above the largest process id in use


def test_ranks_of_a_dead_kernel_are_ended_and_its_folder_removed(base, sleeper):
    folder = _leave_record(base, DEAD, ranks=[strays.identity(sleeper.pid)])
    done = strays.clean()
    assert f"ended process {sleeper.pid}, left by kernel {DEAD[0]}" in done
    assert sleeper.wait(timeout=10) == -9
    assert not folder.exists()


def test_a_process_id_in_use_again_is_left_alone(base, sleeper):
    pid, started = strays.identity(sleeper.pid)
    _leave_record(base, DEAD, server=[pid, started - 1], ranks=[[pid, started + 1]])
    assert not any("ended" in line for line in strays.clean())
    assert sleeper.poll() is None


def test_ranks_of_a_living_kernel_are_left_alone(base, sleeper):
    folder = _leave_record(base, strays.identity(os.getpid()), ranks=[strays.identity(sleeper.pid)])
    assert strays.clean() == []
    assert folder.exists()
    assert sleeper.poll() is None


def test_a_kernel_whose_id_is_in_use_again_counts_as_dead(base, sleeper):
    pid, started = strays.identity(os.getpid())
    folder = _leave_record(base, [pid, started - 1], ranks=[strays.identity(sleeper.pid)])
    assert strays.clean()
    assert not folder.exists()
    assert sleeper.wait(timeout=10) == -9


def test_a_broken_record_is_removed(base):
    folder = base / f"{DEAD[0]}-xyz"
    folder.mkdir()
    (folder / "record.json").write_text("{")
    assert strays.clean() == [f"removed {folder}, left by kernel {DEAD[0]}"]


def test_the_folder_is_private(base):
    assert base.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_to_is_closed_to_them(base):
    base.chmod(0o777)
    assert strays.base().stat().st_mode & 0o777 == 0o700


def test_every_process_of_a_pool_is_on_record(ranks):
    pool = ranks(2)
    record = json.loads((strays.home() / "record.json").read_text())
    assert [one[0] for one in record["ranks"][pool._pool.name]] == pool.pids
    assert record["kernel"] == strays.identity(os.getpid())
    assert psutil.Process(pool.pids[0]).ppid() == record["server"][0]
    assert (strays.home().stat().st_mode & 0o777) == 0o700


def test_the_log_of_a_fork_server_ends_in_its_last_words_and_says_nothing_once_it_is_removed(tmp_path):
    log = tmp_path / "zygote.log"
    log.write_text("a" * 3000 + "the end")
    assert last_words(log) == "a" * 1993 + "the end"
    log.unlink()  # as the kernel does that ends
    assert last_words(log) == ""

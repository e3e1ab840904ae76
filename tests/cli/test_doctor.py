"""``minipar doctor``: each problem is named with what to do about it, and decides the exit code."""

import os
import resource
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from course import cli, doctor
from course.doctor import Finding
from course.ranks import server


def only(check: Iterator[Finding]) -> Finding:
    [finding] = check
    return finding


@pytest.mark.parametrize(
    ("gpus", "nccl", "words"),
    [
        (0, False, "4 ranks on the CPU, gloo"),
        (1, True, "4 ranks share 1 GPU: gloo through the host"),
        (3, True, "4 ranks share 3 GPUs: gloo through the host"),
        (4, True, "4 ranks on 4 GPUs: one GPU each, NCCL"),
        (4, False, "4 ranks share 4 GPUs: gloo through the host"),
    ],
)
def test_how_ranks_will_run_on_any_number_of_gpus(gpus: int, nccl: bool, words: str) -> None:
    assert doctor.how_ranks_run(4, gpus, nccl).startswith(words)


def test_this_machine_runs_the_lessons(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--ranks", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 real ranks started and agreed on 1" in out
    assert out.endswith("Everything the lessons need works here.\n")


def test_a_problem_is_told_with_its_remedy_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        doctor, "examine", lambda ranks: iter([Finding("no", "fork", "no fork", "use WSL 2"), Finding("ok", "x", "y", "z")])
    )
    assert doctor.main() == 1
    out = capsys.readouterr().out
    assert "NO   fork" in out
    assert "-> use WSL 2" in out
    assert "-> z" not in out
    assert out.endswith("Will not work: fork.\n")


def test_the_fork_server_starts_before_the_first_check_and_need_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def start() -> None:
        seen.append("server")
        raise RuntimeError("no room")

    def look(ranks: int) -> Iterator[Finding]:
        seen.append("check")
        yield Finding("ok", "", "")

    monkeypatch.setattr(server, "fork_server", start)
    monkeypatch.setattr(doctor, "CHECKS", (look,))
    assert doctor.main() == 0
    assert seen == ["server", "check"]


def test_a_check_that_breaks_is_a_finding_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_disk(ranks: int) -> Iterator[Finding]:
        raise RuntimeError("on fire")

    monkeypatch.setattr(doctor, "CHECKS", (broken_disk, doctor.python))
    first, second = doctor.examine(2)
    assert (first.verdict, first.subject) == ("no", "broken disk")
    assert "on fire" in first.fact
    assert second.subject == "python"


def test_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    finding = only(doctor.fork(4))
    assert finding.verdict == "no"
    assert "WSL 2" in finding.advice


def test_loopback_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_server", refuse)
    finding = only(doctor.loopback(4))
    assert finding.verdict == "no"
    assert "unreachable" in finding.fact


@pytest.mark.parametrize(("free", "verdict"), [(doctor.SHM_BYTES - 1, "note"), (doctor.SHM_BYTES, "ok")])
def test_small_shared_memory(free: int, verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage(free, 0, free))
    finding = only(doctor.shared_memory(4, tmp_path))
    assert finding.verdict == verdict
    assert "--shm-size" in finding.advice


@pytest.mark.parametrize(("ranks", "verdict"), [(4, "ok"), (5, "no")])
def test_memory_for_the_ranks(ranks: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 4 * doctor.RANK_BYTES + 1)
    assert only(doctor.memory(ranks)).verdict == verdict


@pytest.mark.parametrize(("soft", "verdict"), [(100, "no"), (1024, "ok"), (resource.RLIM_INFINITY, "ok")])
def test_open_files(soft: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (soft, soft))
    assert only(doctor.open_files(4)).verdict == verdict


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    finding = doctor._writable("notebooks", file / "below", "no", "elsewhere")
    assert finding == Finding("no", "notebooks", f"{file / 'below'}: Not a directory", "elsewhere")


def test_another_version_than_the_tested_one_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "pins", lambda path: {"torch": "1.0", "numpy": doctor._plain(doctor.importlib.metadata.version("numpy"))}
    )
    _, finding = doctor.versions(4)
    assert finding.verdict == "note"
    assert "(tested: 1.0)" in finding.fact
    assert "numpy" not in finding.fact

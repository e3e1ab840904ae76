"""A run goes on as if nothing had happened: after the end, under another split, and after whatever came between."""

import errno
import json
import os
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from course import run
from course.ranks import RankDied, RankError
from minipar import train
from minipar.checkpoint import latest
from minipar.checks import RefusedError
from minipar.unfinished import MARK, sweep

SMALL = ["--layers", "2", "--width", "16", "--heads", "2", "--seq", "16", "--rows", "4", "--lr", "0.01", "--dtype", "float64"]
STEPS, EVERY = 4, 2  # two steps after a checkpoint: the second one tells whether the optimizer remembers


def options_for(n: int, folder: Path, *more: str):
    own = [*SMALL, "--steps", str(STEPS), "--save", str(folder), "--save-every", str(EVERY), *more]
    return train.complete(train.parser().parse_args(own), n)


def losses_of(n: int, folder: Path, *more: str, ranks=None) -> list[float]:
    """Of a run on ``n`` ranks, or in this process."""
    options = options_for(n, folder, *more)
    report = ranks(n).run(run.rank_main, options)[0] if ranks else train.train(options)
    return report["loss"]["values"]


def forget_the_end(folder: Path, copy: Path) -> Path:
    """The folder as it was when the last step had not been made."""
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / f"step-{STEPS:08}")
    return copy


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "more",
    [
        ("--dp", "2", "--dropout", "0.2"),
        ("--pp", "2", "--microbatches", "2", "--schedule", "interleaved", "--dropout", "0.2", "--tied"),
        ("--tp", "2", "--sequence-parallel", "--dropout", "0.2", "--optimizer", "sgd"),
    ],
    ids=lambda more: more[0],
)
def test_a_resumed_run_has_the_curve_that_it_would_have_had(ranks, tmp_path: Path, more):
    first = losses_of(2, tmp_path / "first", *more, ranks=ranks)
    again = forget_the_end(tmp_path / "first", tmp_path / "again")
    assert losses_of(2, again, *more, "--resume", ranks=ranks) == pytest.approx(first, rel=1e-10)
    assert names(again) == names(tmp_path / "first") == ["step-00000002", "step-00000004"]


def test_a_checkpoint_is_loaded_by_any_split(ranks, tmp_path: Path):
    saved = tmp_path / "saved"
    expected = losses_of(4, saved, "--dp", "2", "--tp", "2", "--tied", ranks=ranks)
    splits = {
        "one process": (1, ()),
        "pp tp": (4, ("--pp", "2", "--tp", "2", "--microbatches", "2", "--schedule", "zb-h1")),
    }
    for name, (n, more) in splits.items():
        again = forget_the_end(saved, tmp_path / name)
        got = losses_of(n, again, *more, "--tied", "--resume", ranks=ranks if n > 1 else None)
        assert got == pytest.approx(expected, rel=1e-10), name


def test_uneven_pieces_and_experts_find_their_places(ranks, tmp_path: Path):
    for name, more in {
        "uneven": ("--tp", "2", "--heads", "3", "--width", "24"),
        "experts": ("--dp", "2", "--ep", "2", "--experts", "3"),
    }.items():
        saved = tmp_path / name
        expected = losses_of(2, saved, *more, ranks=ranks)
        alone = [word for word in more if word not in ("--tp", "--dp", "--ep", "2")]
        again = forget_the_end(saved, tmp_path / f"{name} again")
        assert losses_of(1, again, *alone, "--resume") == pytest.approx(expected, rel=1e-10), name


def fill_the_disk_of_one_rank(options) -> None:
    """From the second checkpoint on, rank 1 finds no room."""
    from torch.distributed.checkpoint.filesystem import FileSystem

    from minipar.trace import tracer

    plain = FileSystem.create_stream

    class Full:
        def __init__(self, stream):
            self.stream = stream

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.stream, name)

    @contextmanager
    def create_stream(self, path, mode):
        with plain(self, path, mode) as stream:
            full = tracer.rank == 1 and "00000004" in str(path) and "w" in mode
            yield Full(stream) if full else stream

    FileSystem.create_stream = create_stream
    try:
        run.rank_main(options)
    finally:
        FileSystem.create_stream = plain


def test_a_full_disk_is_told_by_every_rank_and_leaves_nothing_half_written(ranks, tmp_path: Path):
    folder = tmp_path / "run"
    with pytest.raises(RankError) as caught:
        ranks(2).run(fill_the_disk_of_one_rank, options_for(2, folder))
    assert isinstance(caught.value.original, RefusedError)
    assert str(caught.value.original) == f"cannot save to {folder}: No space left on device"
    assert names(folder) == ["step-00000002"]


def test_what_does_not_fit_a_checkpoint_is_refused(tmp_path: Path):
    folder = tmp_path / "run"
    losses_of(1, folder, "--save-every", "1")
    assert names(folder) == ["step-00000003", "step-00000004"]  # the newest two
    refused = {
        (): f"{folder} holds step-00000004 already: add --resume",
        ("--resume",): "has done 4 steps already",
        ("--resume", "--steps", "8", "--width", "32"): r"another model: width \d+, ffn \d+; this one has width 32, ffn 128$",
        ("--resume", "--steps", "8", "--optimizer", "sgd"): "another optimizer",
    }
    for more, why in refused.items():
        with pytest.raises(RefusedError, match=why):
            losses_of(1, folder, *more)
    assert names(folder) == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"unknown": 1}'])
def test_damaged_progress_is_told_with_its_remedy(tmp_path: Path, text: str):
    losses_of(1, tmp_path)
    (tmp_path / "step-00000004" / "progress.json").write_text(text)
    with pytest.raises(RefusedError, match=r"step-00000004: its progress.json is damaged \(.*\); .*remove step-00000004"):
        losses_of(1, tmp_path, "--resume", "--steps", "8")


@pytest.mark.parametrize("name", ["progress.json", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("cut", [None, 0, 2])
def test_a_checkpoint_cut_short_or_incomplete_is_refused_by_its_name(tmp_path: Path, name: str, cut: int | None):
    losses_of(1, tmp_path)
    file = tmp_path / "step-00000004" / name
    data = file.read_bytes()
    file.unlink()
    if cut is not None:
        file.write_bytes(data[:cut])
    with pytest.raises(RefusedError, match=r"cannot load .*step-00000004: \w.*; if it is damaged, remove step-00000004 to"):
        losses_of(1, tmp_path, "--resume", "--steps", "8")


def test_a_longer_number_of_steps_is_the_later_one(tmp_path: Path):
    for name in ("step-99999999", "step-100000000"):
        (tmp_path / name).mkdir()
    assert latest(tmp_path) == tmp_path / "step-100000000"


def test_without_a_checkpoint_yet_resume_begins_at_the_beginning(tmp_path: Path):
    assert len(losses_of(1, tmp_path / "new", "--resume")) == STEPS
    progress = json.loads((tmp_path / "new" / "step-00000004" / "progress.json").read_text())
    assert progress["step"] == STEPS == len(progress["losses"])


def hang_in_the_second_save(options) -> None:
    """The last rank writes half of its file and stops."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    from minipar.trace import tracer

    plain = FileSystemWriter.write_data

    def write_data(writer, plan, planner):
        if "00000004" in str(writer.path) and tracer.rank == 1:
            (Path(writer.path) / "__1_0.distcp").write_bytes(b"half")
            time.sleep(600)
        return plain(writer, plan, planner)

    FileSystemWriter.write_data = write_data
    run.rank_main(options)


def test_killed_while_saving_the_last_complete_checkpoint_counts(ranks, tmp_path: Path):
    folder = tmp_path / "run"
    expected = losses_of(1, tmp_path / "whole")
    pool = ranks(2)
    doomed = pool.start(hang_in_the_second_save, options_for(2, folder))
    half = folder / f"{MARK}step-00000004" / "__1_0.distcp"
    deadline = time.monotonic() + 90
    while not half.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankDied):
        doomed.result()
    assert names(folder) == [f"{MARK}step-00000004", "step-00000002"]
    assert losses_of(1, folder, "--resume") == pytest.approx(expected, rel=1e-10)
    assert names(folder) == ["step-00000002", "step-00000004"]


def test_what_a_killed_run_left_unfinished_is_swept_away_and_nothing_else(tmp_path: Path):
    for name in (f"{MARK}step-00000004", "step-00000002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    for name in (f"{MARK}report.json", "report.json"):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert names(tmp_path) == ["report.json", "step-00000002"]

"""The training loop: it learns, the number of ranks does not change what, and its report counts right."""

import errno
import json
from argparse import Namespace
from pathlib import Path

import psutil
import pytest
import torch

from course import run
from course.ranks import RankError
from minipar import free_memory, train
from minipar import report as reports
from minipar.checks import RefusedError
from minipar.planner import predict_step
from minipar.report import job_of, summary
from minipar.trace import Timeline

SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--seq", "16", "--rows", "6", "--lr", "0.01"]


def options_for(n: int, *more: str):
    return train.complete(train.parser().parse_args([*SMALL, *more]), n)


def test_one_process_learns_without_a_process_group():
    losses = train.train(options_for(1, "--steps", "30"))["loss"]["values"]
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5]) * 0.8


@pytest.mark.parametrize("more", [(), ("--microbatches", "2", "--tied"), ("--bucket-mb", "0.001")])
def test_any_number_of_ranks_learns_the_same(ranks, more):
    alone = train.train(options_for(1, "--steps", "4", *more))["loss"]["values"]
    for n in (2,) if more else (2, 3):
        for report in ranks(n).run(run.rank_main, options_for(n, "--steps", "4", *more)):
            assert report["loss"]["values"] == pytest.approx(alone, rel=1e-4)


SPLITS = {
    1: ["", "--clip 0 --dtype float64"],
    2: ["--dp 2 --rows 5", "--pp 2 --microbatches 3 --tied --clip 0", "--tp 2 --sequence-parallel --dtype float64", "--cp 2"],
    4: ["--dp 2 --tp 2 --microbatches 2", "--pp 2 --tp 2 --microbatches 2 --schedule zb-v --layers 2", "--dp 2 --cp 2 --tied"],
}


@pytest.mark.parametrize("n", SPLITS)
def test_the_bytes_that_the_report_predicts_are_those_that_it_counts(ranks, n):
    for split in SPLITS[n]:
        reports = ranks(n).run(run.rank_main, options_for(n, "--steps", "2", *split.split()))
        assert all(report["bytes_by_axis"] == reports[0]["bytes_by_axis"] for report in reports)
        found = reports[0]["bytes_by_axis"]
        assert found["counted"] == pytest.approx(found["predicted"], rel=1e-12), split
        assert bool(found["counted"]) == (n > 1)
        total = sum(reports[0]["bytes_by_collective"]["value"].values())
        assert total == pytest.approx(2 * sum(found["counted"].values()))


def test_the_report_says_where_each_number_comes_from(ranks):
    found = ranks(2).run(run.rank_main, options_for(2, "--steps", "2"))[0]
    assert found["tokens_per_second"]["source"] == "measured"
    assert found["tokens_per_second"]["value"] > 0
    assert len(found["text"]["sha256"]) == 64
    assert found["split"] == {"dp": 2, "pp": 1, "cp": 1, "tp": 1, "ep": 1, "microbatches": 1}
    for word in (found["text"]["sha256"][:16], "(measured)", "(counted)"):
        assert word in summary(found)


def test_a_held_out_loss_says_its_step_where_that_is_not_the_last():
    found = train.train(options_for(1, "--steps", "2", "--evaluate-every", "1"))
    (_, before), (step, last) = found["held_out_loss"]["values"][-2:]
    assert step == 2
    assert f"held-out text {last:.3f} (measured)" in summary(found)
    found["held_out_loss"]["values"].pop()  # as of a run that goes on from a checkpoint and looks no more
    assert f"held-out text {before:.3f} after step 1 (measured)" in summary(found)


REFUSED = {
    "--dp 3": "dp 3 x pp 1 x cp 1 x tp 1 = 3 ranks, but there are 4",
    "--dp 2 --tp 3": "dp 2 x pp 1 x cp 1 x tp 3 = 6 ranks, but there are 4",
    "--rows 3": "take at least --rows 4",
    "--rows 4 --microbatches 2": "take at least --rows 8",
    "--rows 0": "--rows must be at least 1",
    "--batch-tokens 1000": "1000 does not divide into sequences of 128 tokens",
    "--pp 0": "--pp must be at least 1, not 0",
    "--dp -2 --tp -2": "--dp must be at least 1, not -2",
    "--batch-tokens 128 --seq 0": "--seq must be at least 1, not 0",
    "--lr inf": "--lr must be finite",
    "--experts -2": "--experts must not be below 0, and is -2",
    "--seed 99999999999999999999": "--seed must fit into 64 bits",
    "--json same.json --trace ./same.json": "--json and --trace are both same.json",
    "--ranks 0": "a run needs at least 1 rank, but there are 0",
    "--steps 0": "--steps must be at least 1",
    "--microbatches -1": "--microbatches must be at least 1",
    "--bucket-mb 0": "--bucket-mb must be above 0",
    "--lr nan": "--lr must be above 0",
    "--dropout 1": "--dropout is a share",
    "--final-lr 2": "--final-lr is a share",
    "--weight-decay -1": "--weight-decay must not be below 0",
    "--width 30": "width 30 does not divide into 4 heads",
    "--pp 2 --microbatches 0": "--microbatches must be at least 1",
    "--pp 4 --schedule zb-v --microbatches 4 --layers 4": "4 layers, the embedding and the head are too few for 8 stages",
    "--pp 4 --schedule 1f1b --chunks 3 --microbatches 4": "chunks=3: 1f1b has 1 chunk(s) on every rank",
    "--ep 2": "--ep 2 splits experts, and this model has none",
    "--resume": "--resume need --save",
    "--json /no/such/folder/report.json": "cannot write /no/such/folder/report.json: No such file or directory",
    "--trace /tmp": "cannot write /tmp: it is a folder",
    "--save /dev/null/checkpoints": "cannot keep checkpoints in /dev/null/checkpoints: Not a directory",
    "--hardware abacus": "abacus",
    "--ranks 0 --dp 1": "but there are 0",
    "--schedule zigzag": "argument --schedule: invalid choice: 'zigzag' (choose from",
    "--dtype float8": "argument --dtype: invalid choice: 'float8' (choose from",
    "--rows many": "argument --rows: invalid int value: 'many'",
    "--speed 3": "unrecognized arguments: --speed 3",
    "--memory-gb 0": "--memory-gb must be above 0",
}


@pytest.mark.parametrize("argv", list(REFUSED))
def test_what_cannot_run_is_refused_with_a_sentence_and_exit_code_2(argv, capsys):
    assert run.main(argv.split()) == 2
    said = capsys.readouterr().err
    assert REFUSED[argv] in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("more", "layers"), [("", 4), ("--pp 4 --schedule zb-v", 6), ("--pp 4 --layers 8", 8)])
def test_layers_left_out_are_as_many_as_the_stages_need(more: str, layers: int):
    assert train.complete(train.parser().parse_args(["--microbatches", "4", *more.split()]), 4).layers == layers


def test_a_run_that_finds_no_room_is_refused_by_the_planners_number(ranks):
    wide = ["--seq", "64", "--rows", "60000000000"]
    for options in (options_for(2, *wide), options_for(2, "--memory-gb", "0.0001")):
        job = job_of(options)
        wanted = sum(memory.total + 16 * job.tokens for memory in predict_step(job, "cpu").memory()) / 1e9
        with pytest.raises(RankError) as caught:
            ranks(2).run(run.rank_main, options)
        assert isinstance(caught.value.original, RefusedError)
        assert f"would hold {wanted:,.2f} GB of tensors (predicted)" in str(caught.value.original)
    assert ranks(2).run(run.rank_main, options_for(2, "--steps", "1", "--memory-gb", "inf"))


def test_on_one_process_what_is_free_is_what_the_machine_says():
    device = torch.device("cpu")
    assert 0 < free_memory.free_bytes(device) <= psutil.virtual_memory().total
    with pytest.raises(RefusedError, match=r"this run would hold .* GB are free"):
        train.train(options_for(1, "--rows", "60000000000"))


def test_what_the_ranks_refuse_and_a_report_that_finds_no_room_end_alike(ranks, capsys, monkeypatch, tmp_path):
    pool = ranks(2)
    monkeypatch.setattr(pool, "close", lambda: None)  # it stays warm
    monkeypatch.setattr(run, "Ranks", lambda n, hardware: pool)
    assert run.main(["--ranks", "2", "--tp", "2", "--heads", "1", "--width", "32"]) == 2
    assert capsys.readouterr().err == "minipar run: 1 heads cannot be split over the 2 ranks of axis tp: some would get none\n"
    plain = Path.write_text

    def full(path: Path, text: str) -> None:
        plain(path, text[:100])
        if "report" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    report = tmp_path / "report.json"
    assert run.main([*SMALL, "--ranks", "2", "--steps", "2", "--json", str(report)]) == 2
    said = capsys.readouterr()
    assert "tokens/s (measured)" in said.out
    assert said.err.splitlines()[-1] == f"minipar run: cannot write {report}: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_what_only_a_mesh_can_tell_is_refused_by_the_ranks(ranks):
    with pytest.raises(RankError) as caught:
        ranks(2).run(run.rank_main, options_for(2, "--cp", "2", "--seq", "33"))
    assert isinstance(caught.value.original, RefusedError)
    assert "33 tokens do not cut into equal parts over 2 ranks" in str(caught.value.original)


def bubble_before_and_after_a_step(options):
    made = train.Training(options, "cpu")
    before = made.layout.bubble()
    made.advance()
    return before, made.report()["bubble"].keys()


def test_no_step_no_report_and_no_bubble(ranks):
    with pytest.raises(ValueError, match=r"nothing was measured yet: .* advance\(\)"):
        train.Training(options_for(1), "cpu").report()
    for before, after in ranks(2).run(bubble_before_and_after_a_step, options_for(2, "--pp", "2")):
        assert before is None
        assert {"predicted", "measured"} < after


def test_a_report_is_written_though_who_reads_the_summary_has_gone(tmp_path, monkeypatch):
    def gone(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(reports, "summary", str)
    monkeypatch.setattr(reports, "print", gone, raising=False)
    with pytest.raises(BrokenPipeError):
        reports.write(Namespace(json=tmp_path / "report.json", trace=None), {"steps": 1}, Timeline([], 1))
    assert json.loads((tmp_path / "report.json").read_text()) == {"steps": 1}

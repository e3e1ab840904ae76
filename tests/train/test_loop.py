"""The training loop: it learns, the number of ranks does not change what, and its report counts right."""

import pytest

from course import run
from minipar import train

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
    for n in (2, 3):
        for report in ranks(n).run(run.rank_main, options_for(n, "--steps", "4", *more)):
            assert report["loss"]["values"] == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_report_counts_the_bytes_of_all_ranks(ranks, n):
    steps = 3
    reports = ranks(n).run(run.rank_main, options_for(n, "--steps", str(steps)))
    assert all(report["bytes_by_collective"] == reports[0]["bytes_by_collective"] for report in reports)
    counted = reports[0]["bytes_by_collective"]
    assert counted["source"] == "counted"
    gradients_and_loss = (reports[0]["model"]["parameters"] + 1) * 4
    norm = 8
    everyone = 2 * (n - 1)  # 2 (n - 1) / n of the buffer, on each of n ranks
    expected = {"all_reduce over dp": everyone * gradients_and_loss * steps, "all_reduce over world": everyone * norm * steps}
    assert counted["value"] == pytest.approx(expected if n > 1 else {})


def test_the_report_says_where_each_number_comes_from(ranks):
    report = ranks(2).run(run.rank_main, options_for(2, "--steps", "2"))[0]
    assert report["tokens_per_second"]["source"] == "measured"
    assert report["tokens_per_second"]["value"] > 0
    assert len(report["text"]["sha256"]) == 64
    assert report["split"] == {"dp": 2, "pp": 1, "cp": 1, "tp": 1, "ep": 1, "microbatches": 1}
    assert report["text"]["sha256"][:16] in train.summary(report)
    assert "(measured)" in train.summary(report)
    assert "(counted)" in train.summary(report)


REFUSED = {
    "--dp 3": "dp 3 x pp 1 x cp 1 x tp 1 = 3 ranks, but there are 4",
    "--dp 2 --tp 3": "dp 2 x pp 1 x cp 1 x tp 3 = 6 ranks, but there are 4",
    "--rows 3": "take at least --rows 4",
    "--rows 4 --microbatches 2": "take at least --rows 8",
    "--rows 0": "--rows must be at least 1",
    "--steps 0": "--steps must be at least 1",
    "--microbatches -1": "--microbatches must be at least 1",
    "--bucket-mb 0": "--bucket-mb must be above 0",
    "--width 30": "width 30 does not divide into 4 heads",
    "--pp 2 --microbatches 0": "--microbatches must be at least 1",
    "--pp 4 --schedule zb-v --microbatches 4": "4 layers, the embedding and the head are too few for 8 stages",
    "--pp 4 --schedule 1f1b --chunks 3 --microbatches 4": "chunks=3: 1f1b has 1 chunk(s) on every rank",
    "--ep 2": "--ep 2 splits experts, and this model has none",
    "--tp 4 --heads 3 --width 96": "3 heads cannot be split over the 4 ranks of axis tp",
    "--cp 4 --seq 33": "33 tokens do not cut into equal parts over 4 ranks",
    "--hardware abacus": "abacus",
    "--ranks 0 --dp 1": "but there are 0",
}


@pytest.mark.parametrize("argv", list(REFUSED))
def test_what_cannot_run_is_refused_with_a_sentence_and_exit_code_2(argv, capsys):
    assert run.main(argv.split()) == 2
    said = capsys.readouterr().err
    assert REFUSED[argv] in said
    assert "Traceback" not in said

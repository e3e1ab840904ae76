"""Every lab predicts, refuses, runs and shows a finished picture where there is no browser."""

import base64
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image

from course import labs
from course.labs import lab_collectives, lab_data_parallel, lab_long_context, lab_pipeline, lab_tensor_parallel, pool
from course.labs.base import Lab
from course.labs.go import Go
from course.labs.lab_pipeline import PipelineLab
from course.labs.links import said
from course.labs.slow_motion import restored, slowed
from minipar.hardware import PRESETS
from minipar.trace import COMM, Span, Timeline

SMALL: dict[str, dict[str, Any]] = {  # settings that run quickly
    "averaging": {"ranks": 2, "skew": 4, "how": "mean of means"},
    "data_parallel": {"ranks": 2, "layers": 5, "bucket": 2},
    "tensor_parallel": {"tp": 2, "width": 64, "tokens": 64, "order": "column-row"},
    "pipeline": {"ranks": 2, "microbatches": 4, "schedule": "gpipe"},
    "collectives": {"ranks": 3, "mb": 0.01, "algorithm": "naive"},
    "ranks": {"ranks": 3, "which": 1, "when": 1, "what": "raises an error"},
    "long_context": {"cp": 4, "seq": 15_360, "method": "ring"},
    "experts": {"ranks": 2, "steps": 20, "capacity": 1.25},
}
EVERY = pytest.mark.parametrize("name", SMALL)
SHORTER = {
    lab_collectives: {"SHOWN": 0.2, "SHOWN_SMALL": 0.1},
    lab_data_parallel: {"SHOWN": 0.2},
    lab_long_context: {"SHOWN": 0.2},
    lab_tensor_parallel: {"SHOWN": 0.2},
    lab_pipeline: {"SHOWN": 0.1},
}


@pytest.fixture(scope="module", autouse=True)
def nobody_there() -> Iterator[None]:
    """Nobody to move a slider, paced runs that are over soon, and warm ranks from one test to the next."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MINIPAR_ATTENDED", "0")
        for lab, values in SHORTER.items():
            for name, value in values.items():
                monkeypatch.setattr(lab, name, value)
        yield
    pool.close()


@pytest.fixture(scope="module")
def finished() -> Callable[..., Lab]:
    """``finished(name, **values)``: a lab that has run, the same one for the same values."""
    made: dict[tuple[str, str], Lab] = {}

    def make(name: str, **values: Any) -> Lab:
        chosen = {**SMALL[name], **values}
        key = (name, str(sorted(chosen.items())))
        if key not in made:
            made[key] = getattr(labs, name)(**chosen)
        return made[key]

    return make


def test_every_lab_is_tried_here() -> None:
    there = {name for name in vars(labs) if not name.startswith("_") and callable(getattr(labs, name)) and name != "Any"}
    assert there >= set(SMALL)


@EVERY
def test_a_lab_is_a_finished_picture_and_a_table_without_a_browser(finished: Callable[..., Lab], name: str) -> None:
    lab = finished(name)
    data, _ = lab._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert lab.title in data["text/plain"]
    assert lab.said.splitlines()[0] in data["text/plain"]
    png = base64.b64decode(data["image/png"])
    assert Image.open(io.BytesIO(png)).width > 900
    assert len(png) < 100_000
    how = {source for value, _, source in lab.figures.found.values() if source or not isinstance(value, str)}
    assert how
    assert how <= {"counted", "measured", "paced"}  # words may stand for themselves, a number says how it was come by


@EVERY
def test_a_prediction_takes_away_what_was_found_for_other_values(finished: Callable[..., Lab], name: str) -> None:
    lab = finished(name)
    found = dict(lab.figures.found)
    assert found
    lab._predict({**lab.values, "ranks": 4})
    assert lab.figures.predicted
    assert not lab.figures.found
    lab._predict(lab.values)  # as it was, for the next test
    lab.figures.found.update(found)


@EVERY
def test_an_unknown_setting_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(TypeError, match=r"no setting 'speed'; it has .*(ranks|tp|cp)"):
        getattr(labs, name)(speed=3)


def test_impossible_settings_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="3 ranks are numbered 0 to 2; there is no rank 5"):
        labs.ranks(ranks=3, which=5)
    with pytest.raises(ValueError, match="powers of two, and 6 is none"):
        labs.collectives(ranks=6, algorithm="recursive doubling")


def test_collectives_count_the_bytes_that_theory_predicts(finished: Callable[..., Lab]) -> None:
    lab = finished("collectives")
    for name in ("sent by the busiest rank", "over the busiest link"):
        assert lab.figures.found[name] == (*lab.figures.predicted[name], "counted")
    assert lab.figures.found["sent by the busiest rank"][0] == 2 * 0.01e6


def test_data_parallel_sends_as_many_buckets_as_theory_predicts(finished: Callable[..., Lab]) -> None:
    lab = finished("data_parallel")
    for name in ("all-reduces", "sent by each rank"):
        assert lab.figures.found[name][0] == lab.figures.predicted[name][0]
    assert lab.figures.found["all-reduces"][0] == 3  # 2, 2 and 1 layer


@pytest.mark.parametrize("order", ["column-row", "row-column"])
def test_tensor_parallel_counts_the_collectives_and_bytes_that_theory_predicts(finished: Callable[..., Lab], order: str) -> None:
    lab = finished("tensor_parallel", order=order)
    counted = {name for name, (*_, source) in lab.figures.found.items() if source == "counted"}
    assert len(counted) == 6
    for name in counted:
        assert lab.figures.found[name][:2] == lab.figures.predicted[name]
    assert "equal those of the whole MLP" in lab.said
    each_way = {"column-row": 1.0, "row-column": 4.5}[order] * 64 * 64 * 4  # an all-reduce on 2 ranks sends its buffer once
    assert lab.figures.found["sent by each rank backward"][0] == each_way


def test_tensor_parallel_refuses_rows_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="3 ranks do not divide it"):
        labs.tensor_parallel(tp=3, order="row-column")


@pytest.mark.parametrize("split", [{"cp": 4, "tp": 1}, {"cp": 2, "tp": 2}], ids=["cp", "cp and tp"])
@pytest.mark.parametrize("method", ["ring", "zigzag", "ulysses"])
def test_long_context_sends_and_keeps_the_bytes_that_theory_predicts(
    finished: Callable[..., Lab], method: str, split: dict[str, int]
) -> None:
    lab = finished("long_context", method=method, **split)
    counted = {name: found[:2] for name, found in lab.figures.found.items() if found[2] == "counted"}
    assert len(counted) == 3
    assert counted == {name: lab.figures.predicted[name] for name in counted}
    assert lab.figures.found["forward and backward"][1:] == ("s", "paced")
    assert lab.figures.predicted["forward and backward"][0] > 0
    assert "(predicted)" in str(lab.masks.table())
    assert "equal those of one rank" in lab.said


@pytest.mark.parametrize("method", ["ring", "zigzag", "ulysses"])
@pytest.mark.parametrize(("ranks", "tp"), [(1, 1), (2, 1), (4, 1), (2, 4)])
def test_the_masks_of_all_ranks_hold_every_pair_once_for_each_head(ranks: int, tp: int, method: str) -> None:
    from course.labs.lab_long_context import HEADS, masks, notes, pairs
    from course.views.masks import MINE
    from minipar.context_parallel import TokenLayout

    layout = TokenLayout.of(method, ranks)
    picture = masks(layout, tp)
    size = picture.shape[-1]
    heads = HEADS // layout.ulysses // tp
    drawn = [heads * int((mask == MINE).sum()) for mask in picture]
    assert sum(drawn) == HEADS * size * (size + 1) // 2
    assert drawn == pairs(layout, size, tp)
    assert len(set(notes(layout, tp))) == layout.ulysses * tp


def test_long_context_refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="8 heads out to 3 ranks"):
        labs.long_context(cp=3, method="ulysses")
    with pytest.raises(ValueError, match="4 heads out to 3 ranks"):
        labs.long_context(cp=3, tp=2, method="ulysses")
    with pytest.raises(ValueError, match="cp 8 x tp 2 = 16 ranks"):
        labs.long_context(cp=8, tp=2)
    with pytest.raises(ValueError, match="15360 tokens do not cut into equal parts over 7 ranks"):
        labs.long_context(cp=7, seq=15_360)


def test_averaging_by_tokens_learns_what_one_process_learns_and_by_ranks_does_not(finished: Callable[..., Lab]) -> None:
    right = finished("averaging", how="by tokens").figures.found["gradient differs from one process"][0]
    wrong = finished("averaging", how="mean of means").figures.found["gradient differs from one process"][0]
    assert right < 1e-12
    assert wrong > 0.01


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zb-v"])
def test_a_pipeline_holds_and_sends_what_theory_predicts(finished: Callable[..., Lab], schedule: str) -> None:
    lab = finished("pipeline", schedule=schedule)
    counted = {name: value for name, (value, _, source) in lab.figures.found.items() if source == "counted"}
    assert counted == {name: lab.figures.predicted[name][0] for name in counted}
    assert counted["messages"] == 2 * 4 * {"gpipe": 1, "interleaved": 3, "zb-v": 2}[schedule]


def test_an_edited_pipeline_is_predicted_and_run_until_a_slider_moves() -> None:
    lab = PipelineLab(ranks=2, microbatches=3, schedule="1f1b")
    before = lab.figures.predicted["idle"]
    assert not lab.editor.move(0, 2, 0)  # B0 cannot come before F0
    assert lab.editor.move(0, 3, 2)  # F2 before B0: legal, and holds one more
    lab._once()
    assert lab.figures.predicted["most held by rank 0"][0] == lab.figures.found["most held by rank 0"][0] == 3
    lab.values["microbatches"] = 2
    lab._predict(lab.values)
    assert lab.figures.predicted["most held by rank 0"][0] == 2
    assert lab.figures.predicted["idle"] != before


def test_a_pipeline_that_cannot_be_built_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="microbatches=0: a pipeline needs a whole number of microbatches, at least 1"):
        labs.pipeline(microbatches=0)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raises an error", "RankError"),
        ("is killed", "RankDied"),
        ("skips its all-reduce", "RanksStuck"),
        ("loops for ever", "RanksTimeout"),
    ],
)
def test_each_mishap_ends_in_the_error_that_the_lab_foretells(finished: Callable[..., Lab], what: str, told: str) -> None:
    lab = finished("ranks", what=what)
    assert lab.figures.predicted["the notebook shows"][0] == lab.figures.found["the notebook shows"][0] == told
    finished = "all-reduces that all ranks finished"
    assert lab.figures.found[finished][0] == lab.figures.predicted[finished][0]


def test_a_cancelled_run_leaves_idle_ranks() -> None:
    from course.labs.driver import Cancelled

    asked = iter([False, False, True, True])
    with pytest.raises(Cancelled):
        Go(lambda: next(asked))(2, sleeps)
    with pool.borrowed(2) as ranks:
        assert [s.state for s in ranks.states()] == ["idle", "idle"]


def sleeps() -> None:
    import time

    time.sleep(600)


def test_slow_motion_multiplies_every_duration_and_is_taken_out_again() -> None:
    fast = PRESETS["h100-nvlink-ib"]
    slow = slowed(fast, 1000)
    assert slow.collective_seconds("all_reduce", 1e6, range(4)) == pytest.approx(
        1000 * fast.collective_seconds("all_reduce", 1e6, range(4))
    )
    assert slow.device.seconds(1e9, 1e6) == pytest.approx(1000 * fast.device.seconds(1e9, 1e6))
    run = Timeline([Span(0, COMM, "send", 1.0, 3.0), Span(0, COMM, "barrier", 3.0, 4.0)], 1)
    back = restored(run, 1000, lambda s: s.name != "barrier", fast)
    assert [(s.name, s.seconds) for s in back.spans] == [("send", pytest.approx(0.002))]
    assert back.source == "paced"


@pytest.mark.parametrize(
    ("factor", "words"),
    [(1.0, "as fast as shown."), (1.5, "1.5 times slower than shown."), (1570.3, "1,570 times slower than shown.")],
)
def test_a_lab_says_how_much_slower_than_shown_its_ranks_went(factor: float, words: str) -> None:
    assert said("laptop-wifi", factor) == f"Paced as laptop-wifi, {words}"


def test_ranks_load_no_view_for_a_lab() -> None:
    from course import Ranks
    from course.labs.work import all_reduce_once

    with Ranks(1) as ranks:
        ranks.run(all_reduce_once, "ring", 10)
        assert ranks.run(lambda: [name for name in ("matplotlib", "anywidget", "course.views") if name in sys.modules]) == [[]]

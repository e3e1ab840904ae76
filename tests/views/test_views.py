import base64
import io

import numpy as np
import pytest
from PIL import Image

from course.live import painter
from course.views import CurveView, ExpertsView, RankStates, ScheduleView, TimelineView, number
from course.views.labels import tick_texts
from course.views.masks import MaskView
from course.views.spans import COLUMNS, COUNT
from minipar.pipeline_parallel import NAMES, build
from minipar.trace import COMM, COMPUTE, Span, Timeline


def timeline(source="predicted", ranks=2):
    spans = [Span(r, COMPUTE, "F", 5.0 + r, 6.5 + r, stage=r, microbatch=0) for r in range(ranks)]
    spans += [Span(r, COMM, "all_reduce", 7.5, 8.0, "dp", 1000.0, tuple(range(ranks))) for r in range(ranks)]
    return Timeline(spans, ranks, source)


def sent(view):
    return np.frombuffer(view._frame, "<f4").reshape(-1, len(COLUMNS))


def filled():
    """One of each view, with something to see."""
    experts, curve = ExpertsView(4, 2), CurveView("step", "loss")
    experts.push(0, [1, 2, 3, 4], [3, 7], 0.1, [[0, 5], [6, 0]])
    curve.push("loss", 0, 1.0)
    masks = MaskView()
    masks.show(np.arange(5 * 16).reshape(5, 4, 4) % 3, [3, 3, 4, 5, 6], [f"head {rank}" for rank in range(5)])
    schedule = ScheduleView(build("1f1b", ranks=2, microbatches=3))
    return [TimelineView(timeline(), timeline("measured")), experts, curve, masks, schedule]


@pytest.mark.parametrize("view", filled(), ids=lambda v: type(v).__name__)
def test_every_view_has_a_picture_and_text_for_where_no_widget_runs(view):
    data, _ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == str(view.table())
    assert "(" in data["text/plain"] or "measured" in data["text/plain"]  # says how its numbers were come by
    png = base64.b64decode(data["image/png"])
    image = Image.open(io.BytesIO(png))
    assert image.width > 600
    assert len(image.convert("RGB").getcolors(maxcolors=1 << 24)) > 8  # not blank
    assert len(png) < 60_000


@pytest.mark.parametrize("view", filled(), ids=lambda v: type(v).__name__)
def test_the_same_picture_is_the_same_bytes(view):
    assert view.png() == view.png()


@pytest.mark.parametrize(
    "view", [TimelineView(), ExpertsView(2, 2), CurveView("x", "y"), RankStates(), MaskView()], ids=lambda v: type(v).__name__
)
def test_an_empty_view_has_text_but_no_picture(view):
    data, _ = view._repr_mimebundle_()
    assert "image/png" not in data
    assert "text/plain" in data
    assert view.png()  # asked for, it is drawn all the same


# ---- timeline


def patterns(view):
    """How often matplotlib has to draw a pattern: once a path."""
    hatched = view.figure().findobj(lambda artist: getattr(artist, "get_hatch", lambda: None)())
    return sum(len(artist.get_paths()) if hasattr(artist, "get_paths") else 1 for artist in hatched)


def test_the_pattern_of_a_picture_is_drawn_once_a_kind_however_many_spans():
    few, many = (TimelineView(build("zb-v", 4, m).simulate(1, 1, 1), unit="slots") for m in (8, 32))
    assert len(sent(many)) > 3 * len(sent(few))
    assert patterns(many) == patterns(few) < 16


def test_show_replaces_what_is_given_and_leaves_the_rest():
    view = TimelineView(timeline())
    view.show(measured=timeline("paced"))
    assert [b["source"] for b in view._header["blocks"]] == ["predicted", "paced"]
    view.show(predicted=None)
    assert [b["source"] for b in view._header["blocks"]] == ["paced"]


def test_times_count_from_each_runs_own_start():
    view = TimelineView(timeline(), timeline("measured"))
    frame = sent(view)
    for block in np.split(frame, 2):
        assert block[:, 1].min() == 0.0
        assert block[:, 2].max() == pytest.approx(3.0)


def test_the_table_accounts_for_the_whole_time_and_all_bytes():
    text = str(TimelineView(timeline("measured")).table())
    row = next(line for line in text.splitlines() if line.startswith("rank 0"))
    assert row.split("  ")[0] == "rank 0"
    for part in ("1.50 s", "500 ms", "1 s", "1 kB"):  # work, communication, idle, bytes of a makespan of 3 s
        assert part in row


def test_bytes_are_counted_where_they_were_sent_and_predicted_where_they_would_be():
    for source, word in (("predicted", "predicted"), ("measured", "counted"), ("paced", "counted")):
        assert f"1 kB ({word})" in str(TimelineView(timeline(source)).table())
    actions_alone = TimelineView(build("1f1b", ranks=2, microbatches=3).simulate()).table()
    assert [row[-1] for row in actions_alone.rows] == ["-", "-"]  # what they sent is not known here


def test_many_spans_are_sent_merged_and_all_counted():
    spans = [Span(0, COMPUTE, "F", i / 1000, i / 1000 + 0.0005, microbatch=i) for i in range(60_000)]
    view = TimelineView(measured=Timeline(spans, 1, "measured"))
    assert len(sent(view)) <= 8_001
    assert sent(view)[:, COUNT].sum() == 60_000


def test_zooming_in_brings_the_detail_of_that_part():
    spans = [Span(0, COMPUTE, "F", i / 1000, i / 1000 + 0.0005, microbatch=i) for i in range(60_000)]
    view = TimelineView(measured=Timeline(spans, 1, "measured"))
    assert view._header["blocks"][0]["merged"]
    view._hear(view, {"window": [30.0, 31.0]}, [])
    painter.flush()
    frame = sent(view)
    inside = (frame[:, 1] >= 30.0) & (frame[:, 2] <= 31.0)
    assert (frame[inside, COUNT] == 1).all()
    assert frame[:, COUNT].sum() == 60_000
    for nonsense in ({"window": [2, 1]}, {"window": ["a", "b"]}, {}):
        view._hear(view, nonsense, [])
    painter.flush()


# ---- experts


def test_a_long_run_of_experts_stays_small_and_keeps_its_ends():
    view = ExpertsView(4, 2)
    for step in range(3000):
        view.push(step, [step, 0, 0, 0], [step, 0], 0.5)
    painter.flush()
    assert 256 <= len(view.steps) <= 513
    assert view.steps[0] == 0
    assert view.load[:, 0].mean() == pytest.approx(1499.5, rel=0.01)
    assert (np.diff(view.steps) > 0).all()


def test_experts_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"load is \[4\]"):
        ExpertsView(4, 2).push(0, [1, 2], [1, 1])


def test_the_slowest_rank_is_named():
    view = ExpertsView(4, 2)
    view.push(7, [1, 2, 3, 10], [3, 13], 0.25)
    assert "rank 1 (slowest)" in str(view.table())
    assert "2.50 x the mean" in str(view.table())
    assert "dropped 25.0 % (counted)" in str(view.table())


# ---- curves


def test_a_long_curve_stays_small_and_keeps_its_last_point():
    view = CurveView("step", "loss")
    for step in range(20_000):
        view.push("loss", step, float(step))
    painter.flush()
    series = view.series["loss"]
    assert len(series.x) <= 4001
    assert series.x[-1] == 19_999
    assert series.x == series.y


def test_a_curve_must_say_how_its_numbers_were_come_by():
    with pytest.raises(ValueError, match="source is one of"):
        CurveView("step", "loss").push("loss", 0, 1.0, source="guessed")


# ---- schedule


def test_an_illegal_move_is_refused_with_the_rule_and_changes_nothing():
    view = ScheduleView(build("1f1b", ranks=2, microbatches=3))
    before = view.schedule
    assert not view.move(0, 0, 4)
    assert view.schedule is before
    assert view._header["refused"]
    assert "F0 of rank 0 stays" in view._header["said"]
    assert "B0 comes before F0" in view._header["said"]


def test_no_action_can_be_left_out_and_the_refusal_names_what_would_be_missing():
    for schedule in (build("zb-v", ranks=2, microbatches=3), build("gpipe", ranks=2, microbatches=1)):
        view = ScheduleView(schedule)
        for rank, row in enumerate(schedule.rows):
            for slot, action in enumerate(row):
                view._hear(view, {"rank": rank, "slot": slot, "to": slot, "delete": True}, [])
                painter.flush()
                assert view.schedule is schedule
                assert view._header["refused"]
                name = f"{action.kind}{action.microbatch}"
                assert view._header["said"].startswith(f"{name} of rank {rank} stays: rank {rank}")
                assert name in view._header["said"].partition(": ")[2]


def test_a_legal_move_is_told_to_whoever_runs_it_and_can_be_taken_back():
    told = []
    view = ScheduleView(build("1f1b", ranks=2, microbatches=3), changed=told.append)
    rows = view.schedule.rows
    assert view.move(1, 1, 2)
    assert told == [view.schedule]
    view.undo()
    assert view.schedule.rows == rows
    assert len(told) == 2


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_is_the_table_that_runs_also_after_a_move(name):
    view = ScheduleView(build(name, ranks=3, microbatches=4))
    for moved in (False, True):
        assert not moved or any(view.move(2, slot, to) for slot in range(1, 6) for to in range(slot))
        rows = [[(f"{a.kind}{a.microbatch}", a.stage) for a in row] for row in view.schedule.rows]
        drawn = [sorted(row, key=lambda slot: slot["start"]) for row in view._content()[0]["rows"]]
        assert [[(slot["text"], slot["stage"]) for slot in row] for row in drawn] == rows
        assert [row[1].split() for row in view.table().rows] == [[text for text, _ in row] for row in rows]


@pytest.mark.parametrize(
    "content",
    [{"rank": 9, "slot": 0, "to": 1}, {"rank": 0, "slot": -1, "to": 1}, {"rank": "0"}, {}, {"rank": 0, "slot": 0, "to": 99}],
)
def test_a_message_that_makes_no_sense_is_ignored(content):
    view = ScheduleView(build("1f1b", ranks=2, microbatches=3))
    view._hear(view, content, [])
    painter.flush()
    assert view._header["moves"] == 0
    assert not view._header["refused"]


def test_a_message_moves_a_slot():
    view = ScheduleView(build("1f1b", ranks=2, microbatches=3))
    view._hear(view, {"rank": 1, "slot": 1, "to": 2}, [])
    painter.flush()
    assert view._header["moves"] == 1


# ---- numbers


@pytest.mark.parametrize(
    ("value", "unit", "source", "text"),
    [
        (0.0123, "s", "measured", "12.3 ms (measured)"),
        (0, "s", "", "0 s"),
        (0.9999, "s", "", "1.00 s"),
        (4194304, "B", "counted", "4.19 MB (counted)"),
        (512, "B", "", "512 B"),
        (2.5e9, "B/s", "predicted", "2.50 GB/s (predicted)"),
        (0.3636, "share", "paced", "36.4 % (paced)"),
        (1234567, "tokens", "counted", "1,234,567 tokens (counted)"),
        (float("nan"), "s", "", "unknown"),
    ],
)
def test_numbers_carry_unit_and_honesty(value, unit, source, text):
    assert number(value, unit, source) == text


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        ([0, 1, 2, 3], "", ["0", "1", "2", "3"]),
        ([3, 3.5, 4], "", ["3.0", "3.5", "4.0"]),
        ([0, 2.5e-4, 5e-4], "s", ["0 µs", "250 µs", "500 µs"]),
        ([0, 5e5, 1e6], "B", ["0.0 MB", "0.5 MB", "1.0 MB"]),
        ([0, 0.5, 1], "share", ["0 %", "50 %", "100 %"]),
        ([-1e-18, 0.1], "", ["0.0", "0.1"]),
        ([1e3], "B", ["1 kB"]),
        ([], "s", []),
    ],
)
def test_the_ticks_of_an_axis_have_one_unit_and_as_many_decimals(values, unit, texts):
    assert tick_texts(values, unit) == texts


def written(axis):
    return list(axis.get_major_formatter().format_ticks(axis.get_majorticklocs()))


def test_a_curve_of_whole_numbers_has_whole_ticks():
    view = CurveView("slots", "microbatches held")
    view.show("rank 0", [0, 1, 2, 3], [0, 1, 2, 1], "predicted")
    (axes,) = view.figure().axes
    assert [float(text) % 1 for text in written(axes.xaxis) + written(axes.yaxis)] == [0.0] * len(
        written(axes.xaxis) + written(axes.yaxis)
    )
    assert "2" in written(axes.yaxis)
    view.show("rank 0", [0, 1, 2, 3], [0, 0.5, 1.5, 1], "predicted")
    assert {len(text.partition(".")[2]) for text in written(view.figure().axes[0].yaxis)} == {1}


def test_a_number_of_unknown_origin_is_refused():
    with pytest.raises(ValueError, match="a number is one of counted, measured, paced, predicted"):
        number(1, "s", "estimated")

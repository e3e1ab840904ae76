"""The idle share of the ranks' own spans, and of the makespan where that is another number: never one for the other."""

import pytest

from course.views import ScheduleView, TimelineView
from course.views.aggregate import SpanAggregate
from course.views.block import BUBBLE, NOT_COMPUTING, idle_text
from minipar.pipeline_parallel import build
from minipar.trace import COMM, COMPUTE, Span, Timeline

ZB_V = f"bubble 0.0 % of own spans, {100 * 3 / (6 * 8 + 3):.1f} % of the makespan"  # p - 1 = 3 chunks late, 6 actions a microbatch
ONE = f"bubble {100 * 3 / (8 + 3):.1f} %"


@pytest.mark.parametrize(("name", "text", "more"), [("zb-v", ZB_V, ""), ("1f1b", ONE, " of own spans")])
def test_picture_table_and_png_show_both_bubbles_where_they_differ(name: str, text: str, more: str) -> None:
    schedule = build(name, 4, 8)
    view, editor = TimelineView(schedule.simulate(), unit="slots"), ScheduleView(schedule)
    shown = [view.figure().axes[0].get_title(loc="left"), view.table().caption, view._content()[0]["blocks"][0]["idleText"]]
    shown += [editor.figure().axes[0].get_title(loc="left"), editor.table().caption, editor._content()[0]["title"]]
    for words in shown:
        assert text in words
        assert not more or more not in words


def test_a_run_without_computation_has_no_bubble_to_speak_of() -> None:
    assert idle_text(BUBBLE, 1.0, 1.0) == ""


ACTION = Span(0, COMPUTE, "F", 0.0, 1.0, stage=0, microbatch=0)
MESSAGE = Span(1, COMM, "send", 0.0, 4.0, "pp", 8.0)
LANES = {
    "a pipeline's actions": ([ACTION, ACTION._replace(rank=1, start=3.0, end=4.0)], BUBBLE),
    "actions beside messages": ([ACTION, MESSAGE], NOT_COMPUTING),
    "actions and other work": ([ACTION, Span(1, COMPUTE, "optimizer", 3.0, 4.0)], NOT_COMPUTING),
    "no pipeline": ([Span(0, COMPUTE, "B", 0.0, 1.0), MESSAGE._replace(name="all_reduce")], NOT_COMPUTING),
}


@pytest.mark.parametrize(("spans", "word"), LANES.values(), ids=LANES)
def test_only_a_pipelines_waiting_is_called_a_bubble(spans: list[Span], word: str) -> None:
    """In the title of the picture, in the browser, in the table's caption, and while the run still goes on."""
    timeline, running = Timeline(spans, 2, "paced"), SpanAggregate(2, "paced")
    running.add(spans)
    view = TimelineView(measured=timeline)
    shown = [view.figure().axes[0].get_title(loc="left"), view.table().caption, view._content()[0]["blocks"][0]["idleText"]]
    for words in (*shown, running.block().idle_text):
        assert [w for w in (BUBBLE, NOT_COMPUTING) if w in words] == [word]

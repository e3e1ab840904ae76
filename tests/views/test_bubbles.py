"""The idle share of the ranks' own spans, and of the makespan where that is another number: never one for the other."""

import pytest

from course.views import ScheduleView, TimelineView
from course.views.block import bubble_text
from minipar.pipeline_parallel import build

ZB_V = f"bubble 0.0 % of own spans, {100 * 3 / (6 * 8 + 3):.1f} % of the makespan"  # p - 1 = 3 chunks late, 6 actions a microbatch
ONE = f"bubble {100 * 3 / (8 + 3):.1f} %"


@pytest.mark.parametrize(("name", "text", "more"), [("zb-v", ZB_V, ""), ("1f1b", ONE, " of own spans")])
def test_picture_table_and_png_show_both_bubbles_where_they_differ(name: str, text: str, more: str) -> None:
    schedule = build(name, 4, 8)
    view, editor = TimelineView(schedule.simulate(), unit="slots"), ScheduleView(schedule)
    shown = [view.figure().axes[0].get_title(loc="left"), view.table().caption, view._content()[0]["blocks"][0]["bubble"]]
    shown += [editor.figure().axes[0].get_title(loc="left"), editor.table().caption, editor._content()[0]["title"]]
    for words in shown:
        assert text in words
        assert not more or more not in words


def test_a_run_without_computation_has_no_bubble_to_speak_of() -> None:
    assert bubble_text(1.0, 1.0) == ""

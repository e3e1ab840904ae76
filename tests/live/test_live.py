"""Following a run, on real ranks and on a scripted one."""

import threading
from collections import namedtuple

import pytest

from course.live import Live, Painter, live, on
from course.views import TimelineView
from minipar.trace import COMPUTE, Span, Timeline

Event = namedtuple("Event", "kind rank time payload")


class Script:
    """A run whose events the test sends itself."""

    def __init__(self, ranks=2):
        self.ranks, self.spans, self.callback = ranks, [], None

    @property
    def timeline(self):
        return Timeline(list(self.spans), self.ranks, "paced")

    def subscribe(self, callback):
        self.callback = callback

    def send(self, spans):
        self.spans += spans
        self.callback([Event("spans", 0, 0.0, spans)])

    def finish(self):
        self.callback([Event("end", -1, 0.0, "returned")])


def span(i, rank=0):
    return Span(rank, COMPUTE, "F", float(i), i + 0.5, microbatch=i)


def test_the_last_frame_holds_the_whole_run():
    run, view = Script(), TimelineView()
    with live(run, view):
        for i in range(100):
            run.send([span(i), span(i, rank=1)])
        run.finish()
    assert len(view.measured.spans) == 200
    assert view.blocks[0].source == "paced"
    assert sum(block["spans"] for block in view._header["blocks"]) == 200


def test_a_picture_appears_before_the_run_is_over():
    run, view, paint = Script(), TimelineView(), Painter(period=0.0)
    follow = Live(run, view, by=paint)
    run.send([span(0)])
    paint.flush()
    assert len(view.blocks[0].spans) == 1
    assert view.measured is None
    run.finish()
    assert follow.wait(60)


def test_the_reader_never_waits_for_a_view():
    hold, run = threading.Event(), Script()
    follow = Live(run, lambda events: hold.wait(100) and None, by=Painter(period=0.0))
    reader = threading.Thread(target=lambda: [run.send([span(i)]) for i in range(1000)] and run.finish())
    reader.start()
    reader.join(60)
    assert not reader.is_alive()
    hold.set()
    assert follow.wait(60)


def test_a_view_that_fails_is_told_and_the_others_go_on():
    run, got = Script(), []
    follow = Live(run, lambda events: 1 / 0, got.extend, by=Painter(period=0.0))
    run.send([span(0)])
    run.finish()
    with pytest.raises(ZeroDivisionError):
        follow.wait(60)
    assert [e.kind for e in got] == ["spans", "end"]


def test_a_later_run_replaces_an_earlier_one_in_the_view():
    view = TimelineView()
    for count in (5, 3):
        run = Script()
        with live(run, view):
            run.send([span(i) for i in range(count)])
            run.finish()
    assert len(view.measured.spans) == 3


def test_on_picks_events_of_one_kind():
    run, losses = Script(), []
    with live(run, on("loss", lambda event: losses.append(event.payload))):
        run.callback([Event("loss", 0, 0.0, 2.5), Event("print", 0, 0.0, ("stdout", "x")), Event("loss", 1, 0.0, 2.25)])
        run.finish()
    assert losses == [2.5, 2.25]


def _work(steps):
    from minipar.trace import tracer

    for i in range(steps):
        with tracer.span("F", microbatch=i):
            pass


def test_spans_of_real_ranks_arrive_and_none_is_lost():
    from course import Ranks

    view = TimelineView()
    with Ranks(2) as ranks, live(ranks.start(_work, 500), view):
        pass
    assert sorted(s.microbatch for s in view.measured.of(1)) == list(range(500))
    assert sum(block["spans"] for block in view._header["blocks"]) > 0

import threading

import pytest

from course.live.painter import Painter


def test_the_last_state_is_drawn_and_many_asks_are_one_frame():
    drawing, go_on, state, drawn = threading.Event(), threading.Event(), [0], []

    def draw():
        drawn.append(state[0])
        drawing.set()
        go_on.wait(60)

    painter = Painter(period=0.0)
    painter.ask(draw)
    assert drawing.wait(60)
    for i in range(1, 1001):
        state[0] = i
        painter.ask(draw)
    go_on.set()
    painter.flush(60)
    assert drawn == [0, 1000]


def test_nothing_is_lost_when_the_last_ask_comes_while_drawing():
    drawing, go_on, state, drawn = threading.Event(), threading.Event(), [1], []

    def draw():
        seen = state[0]
        drawing.set()
        go_on.wait(60)
        drawn.append(seen)

    painter = Painter(period=0.0)
    painter.ask(draw)
    assert drawing.wait(60)
    state[0] = 2
    painter.ask(draw)
    go_on.set()
    painter.flush(60)
    assert drawn[-1] == 2


def test_frames_never_run_at_the_same_time():
    inside, most = [0], [0]

    def draw():
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.002)
        inside[0] -= 1

    painter = Painter(period=0.0)
    askers = [threading.Thread(target=lambda: [painter.ask(draw) for _ in range(200)]) for _ in range(4)]
    [t.start() for t in askers]
    [t.join() for t in askers]
    painter.flush(60)
    assert most[0] == 1


def test_asking_never_waits_for_a_slow_frame():
    hold, painter = threading.Event(), Painter(period=0.0)
    draw = lambda: hold.wait(100) and None  # noqa: E731
    asker = threading.Thread(target=lambda: [painter.ask(draw) for _ in range(1000)])
    asker.start()
    asker.join(60)
    assert not asker.is_alive()
    hold.set()
    painter.flush(60)


def test_every_view_is_drawn_even_when_one_fails_and_the_error_is_told():
    drawn, painter = [], Painter(period=0.0)
    painter.ask(lambda: 1 / 0)
    painter.ask(lambda: drawn.append("other"))
    with pytest.raises(ZeroDivisionError):
        painter.flush(60)
    painter.flush(60)  # told once
    assert drawn == ["other"]

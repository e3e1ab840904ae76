import threading

import pytest

from course.live.painter import Painter


def test_the_last_state_is_drawn():
    state, drawn = [0], []
    painter = Painter(lambda: drawn.append(state[0]), period=0.02)
    for i in range(1, 1001):
        state[0] = i
        painter.ask()
    painter.close()
    assert drawn[-1] == 1000
    assert len(drawn) < 100  # many asks are one frame


def test_nothing_is_lost_when_the_last_ask_comes_while_drawing():
    drawing, go_on, state, drawn = threading.Event(), threading.Event(), [1], []

    def draw():
        seen = state[0]
        drawing.set()
        go_on.wait(10)
        drawn.append(seen)

    painter = Painter(draw, period=0.0)
    painter.ask()
    drawing.wait(10)
    state[0] = 2
    painter.ask()
    go_on.set()
    painter.close()
    assert drawn[-1] == 2


def test_frames_never_run_at_the_same_time():
    inside, most = [0], [0]

    def draw():
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.002)
        inside[0] -= 1

    painter = Painter(draw, period=0.0)
    askers = [threading.Thread(target=lambda: [painter.ask() for _ in range(200)]) for _ in range(4)]
    [t.start() for t in askers]
    [t.join() for t in askers]
    painter.close()
    assert most[0] == 1


def test_asking_never_waits_for_a_slow_frame():
    hold = threading.Event()
    painter = Painter(lambda: hold.wait(10) and None, period=0.0)
    asker = threading.Thread(target=lambda: [painter.ask() for _ in range(1000)])
    asker.start()
    asker.join(5)
    assert not asker.is_alive()
    hold.set()
    painter.close()


def test_an_error_while_drawing_is_told_at_the_end():
    painter = Painter(lambda: 1 / 0, period=0.0)
    painter.ask()
    with pytest.raises(ZeroDivisionError):
        painter.close()

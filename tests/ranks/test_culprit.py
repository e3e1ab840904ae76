"""What keeps a function from being sent to the ranks is named as the learner named it."""

from __future__ import annotations

import threading

import pytest

LOCKED = """
import functools, threading
lock = threading.Lock()

def helper(x):
    with lock:
        return work(x)

def work(x):
    return helper(x)

class Store:
    def __init__(self, path):
        self.path = path

    def read(self):
        return helper(self.path)

read = Store("x").read
part = functools.partial(work, 1)
cached = functools.cache(work)
"""


@pytest.mark.parametrize("name", ["work", "read", "part", "cached"])
def test_a_variable_that_cannot_be_pickled_is_named_however_deep(ranks, name):
    space = {"__name__": "__main__"}
    exec(LOCKED, space)
    with pytest.raises(TypeError, match=r"the variable 'lock' \(lock\), which 'helper' uses, cannot be sent"):
        ranks(2).run(space[name], 1)
    with pytest.raises(TypeError, match=r"the variable 'lock' \(lock\), which 'helper' uses, cannot be sent"):
        ranks(2).run(print, space[name])


def test_a_closure_that_is_not_filled_does_not_hide_what_cannot_be_pickled(ranks):
    def work():
        return lock, late

    lock = threading.Lock()
    with pytest.raises(TypeError, match="the variable 'lock'"):
        ranks(2).run(work)
    late = None

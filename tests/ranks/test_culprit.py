"""What keeps a function from being sent to the ranks is named as the learner named it."""

from __future__ import annotations

import functools
import re
import threading

import pytest

from course.ranks.culprit import culprit

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


HIDDEN = """
import ctypes, dataclasses, functools, threading, torch
lock = threading.Lock()
config = {"lr": 1, "locks": [1, lock]}

def of_items(): return config

def of_defaults(x, y=lock): return x

def of_keywords(*, y=lock): return y

def of_attributes(): pass
of_attributes.helper = lock

@dataclasses.dataclass(slots=True)
class Slotted:
    guard: object
slotted = Slotted(lock)
def of_slots(): return slotted

class Field(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int)]
def of_c(): return Field

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.guard = threading.Lock()
net = torch.nn.Sequential(torch.nn.Sequential(Net()))
def of_modules(): return net

class Properties:
    @property
    def guarded(self): return lock
def of_properties(): return Properties

@functools.singledispatch
def of_types(x): return 0
@of_types.register
def of_lists(x: list): return lock

of_parts = functools.partial(print, 1, lock)

@torch.compile(backend="eager")
def fast(x): return x
def of_compiled(): return fast(1)
"""
NAMED = {
    "of_items": "the item 1 (lock), which 'locks' holds,",
    "of_defaults": "the variable 'y' (lock), which the function uses,",
    "of_keywords": "the variable 'y' (lock), which the function uses,",
    "of_attributes": "the variable 'helper' (lock), which the function uses,",
    "of_slots": "the variable 'guard' (lock), which 'slotted' uses,",
    "of_c": "the variable 'x' (CField), which 'Field' uses,",
    "of_modules": "the variable 'guard' (lock), which '0' uses,",
    "of_properties": "the variable 'lock' (lock), which 'guarded' uses,",
    "of_types": "the variable 'lock' (lock), which 'of_lists for list' uses,",
    "of_parts": "the item 1 (lock), which the function holds,",
    "of_compiled": "the variable 'fast' (compiled function), which the function uses,",
    "fast": "this compiled function",
}


@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_pickled_is_named_wherever_it_is_held(name):
    space = {"__name__": "__main__"}
    exec(compile(HIDDEN, "a cell", "exec", dont_inherit=True), space)
    assert culprit(space[name], ()) == NAMED[name]


def test_an_argument_is_named_by_what_it_holds():
    lock = threading.Lock()
    assert culprit(len, (1, {"a": [1, lock]})) == "the item 1 (lock), which 'a' holds,"
    assert culprit(len, (1, [lock])) == "the item 0 (lock), which argument 2 holds,"
    assert culprit(len, (lock,)) == "argument 1 (lock)"
    deep = functools.reduce(lambda inner, _: [inner], range(100_000), [])
    assert re.fullmatch(r"the item 0 \(list\), which item 0 holds,", culprit(len, (deep,)))
    assert culprit(len, ([0] * 10_000 + [lock],)) == "argument 1 (list)"  # in no time


def test_a_closure_that_is_not_filled_does_not_hide_what_cannot_be_pickled(ranks):
    def work():
        return lock, late

    lock = threading.Lock()
    with pytest.raises(TypeError, match="the variable 'lock'"):
        ranks(2).run(work)
    late = None

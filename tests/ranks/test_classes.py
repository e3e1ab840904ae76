"""A class of a notebook is one class: as it is where it was defined, and like that on every rank."""

from __future__ import annotations

import pytest
from cloudpickle import cloudpickle

from course.ranks import wire
from tests.ranks.test_functions import notebook

REGISTRY = """
class Plan:
    known = {}

    def __init_subclass__(cls, /, name, **more):
        super().__init_subclass__(**more)
        cls.name = name
        Plan.known[name] = cls

class Ring(Plan, name="ring"):
    def steps(self, n):
        return 2 * (n - 1)

def work():
    return Plan.known["ring"] is Ring, Ring.name, Plan.known["ring"]().steps(4), Ring()
"""


def test_a_class_that_is_registered_where_it_is_defined_stays_so_in_every_run(ranks):
    space = notebook(REGISTRY)
    for _ in range(2):
        ((same, name, steps, made),) = ranks(1).run(space["work"])
        assert (same, name, steps) == (True, "ring", 6)
        assert type(made) is space["Ring"] is space["Plan"].known["ring"]
    assert list(space["Plan"].known) == ["ring"]


LIVE = """
def helper():
    return 1

class Model:
    lr = 1

    def answer(self):
        return helper(), self.lr

def work(lr):
    before = Model.lr
    Model.lr = lr
    return before, Model()
"""


def test_a_run_that_returns_an_object_leaves_its_class_as_it_is(ranks):
    space = notebook(LIVE)
    assert ranks(1).run(space["work"], 5)[0][1].answer() == (1, 1)
    exec("def helper(): return 2", space)
    assert space["Model"]().answer() == (2, 1)


def test_a_class_that_was_changed_is_changed_on_the_ranks_in_the_next_run(ranks):
    space = notebook(LIVE)
    ranks(1).run(space["work"], 5)
    space["Model"].lr = 7
    assert ranks(1).run(space["work"], 5)[0][0] == 7


META = """
import abc
from typing import Generic, TypeVar

class Kinds(abc.ABCMeta):
    made = 0

    @classmethod
    def __prepare__(meta, name, bases, *, kind):
        return {"prepared": kind}

    def __new__(meta, name, bases, space, *, kind):
        made = super().__new__(meta, name, bases, space)
        made.kind = kind
        return made

    def __init__(cls, name, bases, space, *, kind):
        super().__init__(name, bases, space)
        Kinds.made += 1

class Base(metaclass=Kinds, kind="base"):
    @abc.abstractmethod
    def answer(self): ...

class Slotted(Base, kind="slotted"):
    __slots__ = ("x",)

    def answer(self):
        return self.kind, self.prepared

    class Inner:
        pass

class Scaled:
    def __init_subclass__(cls, /, scale, **more):
        super().__init_subclass__(**more)
        cls.scale = scale

T = TypeVar("T")

class Box(Scaled, Generic[T], scale=3):
    pass
"""


def test_a_class_is_made_again_without_the_arguments_of_its_definition(monkeypatch):
    space = notebook(META)
    data = wire.dumps([space[name] for name in ("Kinds", "Base", "Slotted", "Box", "Scaled")])
    monkeypatch.setattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})  # as in another process
    kinds, base, slotted, box, scaled = wire.loads(data)
    assert slotted is not space["Slotted"]
    assert (kinds.made, slotted().answer(), box.scale, box[int]().scale) == (2, ("slotted", "slotted"), 3, 3)
    assert slotted.Inner.__qualname__ == "Slotted.Inner"
    with pytest.raises(TypeError, match="abstract method"):
        base()
    later = kinds("Later", (slotted,), {}, kind="later")  # the hooks are there again
    assert (later.kind, kinds.made) == ("later", 3)
    with pytest.raises(TypeError, match="scale"):
        type("Later", (scaled,), {})

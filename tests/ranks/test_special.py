"""What a notebook defines does on the ranks what it does here, and comes back."""

from __future__ import annotations

import functools
import typing

import pytest

from course.ranks import wire
from tests.ranks.test_functions import again, notebook

SHAPES = """
import functools

@functools.singledispatch
def depth(x):
    return 0

@depth.register
def _(x: list):
    return 1 + max(map(depth, x), default=0)

@depth.register(tuple)
def of_tuple(x):
    return 10 + depth(list(x))

class Square:
    def __init__(self, side):
        self.side = side

    @functools.cached_property
    def area(self):
        return self.side * self.side

    @functools.singledispatchmethod
    def scaled(self, by):
        return None

    @scaled.register
    def _(self, by: int):
        return Square(self.side * by)
"""


def test_a_function_for_several_types_keeps_them_apart_and_may_name_itself():
    made = again(notebook(SHAPES)["depth"])
    assert (made(3), made([[], [[]]]), made(([],))) == (0, 3, 12)
    made.register(str, lambda x: "text")
    assert made("") == "text"


def test_attributes_of_a_function_for_several_types_come_along():
    depth = notebook(SHAPES)["depth"]
    depth.unit, depth.mate = "levels", depth
    made = again(depth)
    assert made is not depth
    assert (made.unit, made.mate) == ("levels", made)


def test_properties_and_methods_of_functools_come_along():
    square = again(notebook(SHAPES)["Square"](3))
    assert square.area == 9
    assert "area" in vars(square)
    assert square.scaled(2).area == 36


SLOTS = """
import dataclasses, enum
from collections import namedtuple
from typing import NamedTuple

@dataclasses.dataclass(slots=True, frozen=True)
class Point:
    x: int
    y: int = 0

class Named:
    __slots__ = "name"

class More(Named):
    __slots__ = ("kind", "__weakref__")

class Any(Named):
    pass

class Level(enum.IntEnum):
    __slots__ = ()
    LOW = 1

class Pair(NamedTuple):
    left: int
    right: int = 2

Bare = namedtuple("Bare", "left right")
"""


@pytest.mark.parametrize(
    ("name", "values"), [("Named", {"name": 1}), ("More", {"name": 1, "kind": 2}), ("Any", {"name": 1, "other": 3})]
)
def test_an_object_with_slots_is_the_same_there(monkeypatch, name, values):
    one = notebook(SLOTS)[name]()
    for key, value in values.items():
        setattr(one, key, value)
    made = _of_another_process(one, monkeypatch)
    assert type(made) is not type(one)
    assert {key: getattr(made, key) for key in values} == values
    assert hasattr(made, "__dict__") == hasattr(one, "__dict__")


def _of_another_process(obj, monkeypatch):
    """Else a class is recognised, and not made again."""
    from cloudpickle import cloudpickle

    data = wire.dumps(obj)
    monkeypatch.setattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
    return wire.loads(data)


def test_an_enum_with_slots_is_one_there_too():
    level = again(notebook(SLOTS)["Level"])
    assert level.LOW is level(1)


@pytest.mark.parametrize("name", ["Pair", "Bare"])
def test_a_named_tuple_is_one_there_too(monkeypatch, name):
    one = notebook(SLOTS)[name](1, 2)
    made = _of_another_process(one, monkeypatch)
    assert type(made) is not type(one)
    assert made == one == made._replace(right=2)
    assert made._fields == ("left", "right")


def test_an_object_with_slots_comes_back_from_the_ranks(ranks):
    space = notebook(SLOTS + "def work(x): return Point(x, y=2), Named()")
    point, named = ranks(1).run(space["work"], 1)[0]
    assert point == space["Point"](1, 2)
    assert type(named) is space["Named"]


ENUMS = """
import abc, enum
from dataclasses import dataclass
from functools import partial

class Planet(enum.Enum):
    EARTH = 5.97, 6.37
    MARS = 0.64, 3.39
    HOME = EARTH

    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius
        self.first = type(self).__members__.get("EARTH")

    @property
    def density(self):
        return self.mass / self.radius ** 3

class Axis(bytes, enum.Enum):
    ROWS = 0, "dp"
    LAYERS = 1, "pp"

    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value] * 2)
        made._value_, made.label = value, label
        return made

class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE

    def __init__(self, bit):
        self.bit = bit

class Level(enum.IntEnum):
    LOW = enum.auto()
    HIGH = 10

    @classmethod
    def _missing_(cls, value):
        return cls.LOW

class Kind(enum.StrEnum):
    def _generate_next_value_(name, start, count, values):
        return "a " + name

    RING = enum.auto()

def run(x):
    return Schedule.GPIPE, x

class Schedule(enum.Enum):
    GPIPE = partial(run)

@dataclass
class Size:
    width: int

class Model(Size, enum.Enum):
    SMALL = 16

class Meta(abc.ABCMeta, enum.EnumType):
    pass

class Shape(abc.ABC, enum.Enum, metaclass=Meta):
    @abc.abstractmethod
    def sides(self): ...

class Polygon(Shape):
    SQUARE = 4

    def sides(self):
        return self.value
"""
ENUM_NAMES = ["Planet", "Axis", "Right", "Level", "Kind", "Schedule", "Model", "Polygon"]


@pytest.mark.parametrize("first", ["the class", "a member"])
@pytest.mark.parametrize("name", ENUM_NAMES)
def test_an_enum_has_its_members_with_all_that_they_were_given(monkeypatch, name, first):
    kind = notebook(ENUMS)[name]
    made, members = _of_another_process((kind, [*kind]) if first == "the class" else ([*kind][::-1], kind)[::-1], monkeypatch)
    assert made is not kind
    assert list(made.__members__) == list(kind.__members__)
    assert {id(one) for one in members} == {id(one) for one in made}
    for key, one in kind.__members__.items():
        there = made[key]
        assert there is getattr(made, key) is made(there.value)
        assert isinstance(there, made)
        assert vars(there).keys() - {"_inverted_"} == vars(one).keys() - {"_inverted_"}
        assert there.name == one.name


def test_members_of_an_enum_do_what_they_do_here(monkeypatch):
    space = notebook(ENUMS)
    kinds = [space[name] for name in ENUM_NAMES]
    planet, axis, right, level, kind, schedule, model, polygon = _of_another_process(kinds, monkeypatch)
    assert planet.MARS.density == space["Planet"].MARS.density
    assert planet.MARS.first is planet.EARTH is planet.HOME
    assert (axis.LAYERS, axis(1).label) == (b"\1\1", "pp")
    assert (right.READ | right.WRITE, right.BOTH.bit, ~right.READ) == (right.BOTH, 3, right.WRITE)
    assert (level(3), level.HIGH + 1) == (level.LOW, 11)
    assert kind.RING + "!" == "a RING!"
    assert schedule.GPIPE.value(1) == (schedule.GPIPE, 1)
    assert (model.SMALL.width, polygon.SQUARE.sides()) == (16, 4)


def test_flags_put_together_are_the_same_however_often_they_travel(ranks):
    space = notebook(ENUMS + "def work(rights): return rights is Right(int(rights.value)), rights")
    right = space["Right"]
    for rights in (right.READ | right.WRITE, right(0), ~right.READ, right.READ):
        assert ranks(1).run(space["work"], rights) == [(True, rights)]


DICTS = """
import typing

class Options(typing.TypedDict, total=False):
    name: typing.Required[str]
    lr: float

class More(Options):
    steps: int

T = typing.TypeVar("T")

class Pair(typing.TypedDict, typing.Generic[T]):
    left: T
"""


def test_a_typed_dict_is_one_there_too():
    space = {"__name__": "__main__"}
    exec(compile(DICTS, "a cell", "exec", dont_inherit=True), space)  # annotations of this file are text
    options, more, pair = again([space["Options"], space["More"], space["Pair"]])
    assert more is not space["More"]
    assert typing.is_typeddict(more)
    assert more(name="a", steps=2) == {"name": "a", "steps": 2}
    assert (more.__required_keys__, more.__optional_keys__) == ({"name", "steps"}, {"lr"})
    assert (more.__annotations__.keys(), options.__total__, more.__total__) == ({"name", "lr", "steps"}, False, True)
    assert pair[int](left=1) == {"left": 1}


MANAGED = """
import contextlib
log = []

@contextlib.contextmanager
def timed(name):
    log.append("begin " + name)
    yield
    log.append("end " + name)

@timed("step")
def step():
    return list(log)
"""


def test_a_function_under_a_context_manager_travels(ranks):
    assert ranks(1).run(notebook(MANAGED)["step"]) == [["begin step"]]


def test_a_context_manager_that_was_entered_does_not(ranks):
    space = notebook(MANAGED + "manager = timed('x')\nmanager.__enter__()\ndef work(): return manager")
    with pytest.raises(TypeError, match=r"the variable 'manager' \(_GeneratorContextManager\), which the function uses"):
        ranks(1).run(space["work"])


TYPES = """
from typing import NewType, ParamSpec, TypeVar, TypeVarTuple
Seconds = NewType("Seconds", float)
P, T, Ts = ParamSpec("P"), TypeVar("T"), TypeVarTuple("Ts")

def wait(time: Seconds, *given: P) -> tuple[T, Ts]:
    return Seconds(time + 1)
"""


def test_a_function_takes_the_types_of_its_annotations_along():
    space = {"__name__": "__main__"}
    exec(compile(TYPES, "a cell", "exec", dont_inherit=True), space)  # this file's own annotations are text
    made = again(space["wait"])
    assert made(1) == 2
    kinds = {name: made.__annotations__[name] for name in ("time", "given")}
    assert [(kind.__name__, kind.__module__, type(kind)) for kind in kinds.values()] == [
        ("Seconds", "__main__", typing.NewType),
        ("P", "__main__", typing.ParamSpec),
    ]
    assert kinds["time"].__supertype__ is float


def test_a_type_of_a_module_goes_by_name():
    assert again(Metres) is Metres
    assert again(functools.cached_property) is functools.cached_property


Metres = typing.NewType("Metres", float)

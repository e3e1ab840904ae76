"""Functions of a notebook, taken apart and made again: they do there what they do here."""

from __future__ import annotations

import importlib
import itertools
import sys
from types import ModuleType

import cloudpickle
import pytest

from course.ranks import functions, wire


def notebook(source, **variables):
    """The variables of a notebook after a cell with this ``source``."""
    space = {"__name__": "__main__", **variables}
    exec(source, space)
    return space


def again(obj):
    return wire.loads(wire.dumps(obj))


def test_defaults_closure_and_attributes_come_along():
    pi, numbers = 3, [1, 2]

    def area(radius, *, scale=2, digits=numbers):
        """Of a circle."""
        return pi * radius * radius * scale, digits

    area.unit = "cm2"
    made = again(area)
    assert made(2) == area(2) == (24, [1, 2])
    assert (made.unit, made.__doc__, made.__name__, made.__qualname__) == ("cm2", "Of a circle.", "area", area.__qualname__)
    assert made.__module__ == area.__module__


RECURSION = """
def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)
"""


def test_functions_may_name_one_another():
    assert again(notebook(RECURSION)["even"])(10)
    inside = notebook("def both():\n" + RECURSION.replace("\n", "\n    ") + "\n    return even, odd")
    even, odd = again(inside["both"]())
    assert even(10)
    assert not odd(10)


COUNTER = """
def count():
    global total
    total += 1
    return total

def read():
    return total
"""


def test_functions_of_one_notebook_share_their_variables():
    cell = notebook(COUNTER, total=5)
    count, read = again((cell["count"], cell["read"]))
    assert (count(), count(), read(), cell["read"]()) == (6, 7, 7, 5)
    assert again(cell["count"])() == 6  # every time afresh


DURING = """
factor = 31

def mixed(n):
    return n * factor

class Key:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return mixed(self.n)

    def __eq__(self, other):
        return self.n == other.n

class TooMany(Exception):
    def __init__(self, n):
        super().__init__(n)
        self.over = n - factor

class Kind(type):
    def __new__(kind, name, bases, space):
        space["kind"] = mixed(1)
        return super().__new__(kind, name, bases, space)

class Made(metaclass=Kind):
    pass

table, problem = {Key(1): "one"}, TooMany(33)

def work():
    return table[Key(1)], problem.over, Made.kind, mixed(1), factor
"""


def test_a_function_that_is_called_while_others_are_made_has_its_variables(monkeypatch):
    data = wire.dumps(notebook(DURING)["work"])
    monkeypatch.setattr("cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID", {})  # else a class is recognised, not made again
    assert wire.loads(data)() == ("one", 2, 31, 31, 31)


def test_functions_of_one_closure_share_its_variables():
    def make():
        total = 5

        def count():
            nonlocal total
            total += 1
            return total

        return count, lambda: total

    count, read = again(make())
    assert (count(), count(), read()) == (6, 7, 7)


def test_a_function_may_be_among_its_own_defaults():
    def work(n, steps=[]):  # noqa: B006
        return n if not steps else steps[0](n - 1, ()) + 1

    work.__defaults__[0].append(work)
    made = again(work)
    assert made(3) == 3
    assert made.__defaults__[0][0] is made


NESTED = """
def outer():
    class Circle:
        around = 2 * pi

        def area(self):
            return [pi * n for n in numbers]

    return Circle
"""


def test_what_a_class_or_a_function_inside_names_comes_along():
    made = again(notebook(NESTED, pi=3, numbers=[1, 2])["outer"])
    assert made().around == 6
    assert made()().area() == [3, 6]


def test_a_name_that_a_class_inside_defines_before_it_reads_it_is_no_variable():
    cell = notebook("def work():\n  class Lab:\n    big = big\n    size = 2\n    twice = 2 * size", big=1, size=itertools.count())
    assert functions.globals_of(cell["work"].__code__) == ("__name__", "big")


def test_only_variables_that_are_used_travel():
    """An attribute of the same name is not the variable."""
    cell = notebook("def real(x): return x.imag", imag=itertools.count(), real=lambda: 0)
    assert functions.globals_of(cell["real"].__code__) == ()
    assert again(cell["real"])(2j) == 2


def test_a_closure_that_is_not_filled_yet_stays_so():
    def make():
        def late():
            return value

        early = again(late)
        value = 1
        return late, early

    late, early = make()
    assert late() == 1
    with pytest.raises(NameError, match="value"):
        early()


def test_modules_reached_through_their_package_are_loaded(tmp_path, monkeypatch):
    room = tmp_path / "some_package" / "inner"
    room.mkdir(parents=True)
    for folder in (room.parent, room):
        (folder / "__init__.py").touch()
    (room / "deep.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(tmp_path)
    cell = notebook("import some_package.inner.deep\ndef ask(): return some_package.inner.deep.answer")
    data = bytes(wire.dumps(cell["ask"]))
    for name in [name for name in sys.modules if name.startswith("some_package")]:
        monkeypatch.delitem(sys.modules, name)
    assert wire.loads(data)() == 42


def test_functions_of_a_module_go_by_value_where_cloudpickle_was_told_so(tmp_path, monkeypatch):
    room = tmp_path / "told_package"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "inner.py").write_text("factor = 2\ndef double(n): return factor * n")
    monkeypatch.syspath_prepend(tmp_path)
    package, inner = importlib.import_module("told_package"), importlib.import_module("told_package.inner")
    for module in (package, inner):
        assert again(inner.double) is inner.double
        cloudpickle.register_pickle_by_value(module)
        try:
            made = again(inner.double)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
        assert made is not inner.double
        assert made(3) == 6


CACHED = """
import functools, itertools
calls = itertools.count(1)

@functools.{decorator}
def double(n):
    return 2 * n, next(calls)

@functools.{decorator}
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
"""


@pytest.mark.parametrize("decorator", ["cache", "lru_cache", "lru_cache(maxsize=2)", "lru_cache(typed=True)"])
def test_a_cached_function_travels_and_starts_with_an_empty_cache(decorator):
    double = notebook(CACHED.format(decorator=decorator))["double"]
    assert double(1) == double(1) == (2, 1)
    made = again(double)
    assert made(1) == made(1) == (2, 2)
    assert made.cache_info() == double.cache_info()
    assert made.cache_parameters() == double.cache_parameters()


def test_code_in_c_that_imports_finds_the_builtins():
    cell = notebook("import time\ndef day(): return time.strptime('30', '%d').tm_mday")
    assert again(cell["day"])() == 30


def test_a_cached_function_may_name_itself():
    made = again(notebook(CACHED.format(decorator="cache"))["fibonacci"])
    assert made(80) == 23416728348467685
    assert made.__wrapped__.__globals__["fibonacci"] is made


def test_a_function_of_a_module_goes_by_name():
    assert again(notebook) is notebook
    assert again(functions.globals_of) is functions.globals_of  # a cached one
    assert len(wire.dumps(notebook)) < 80


def test_packing_takes_no_longer_with_more_modules_loaded(monkeypatch):
    """Counted in Python's own calls and returns."""
    work = notebook("import torch.nn.functional\ndef work(x): return torch.nn.functional.relu(x)")["work"]
    before = calls_of(lambda: wire.dumps(work))
    for i in range(1000):
        monkeypatch.setitem(sys.modules, f"torch.more_{i}", ModuleType(f"torch.more_{i}"))
    assert calls_of(lambda: wire.dumps(work)) == before < 500


def calls_of(work):
    work()  # what is remembered from now on is not counted
    seen = itertools.count()
    sys.setprofile(lambda *_: next(seen))
    try:
        work()
    finally:
        sys.setprofile(None)
    return next(seen)


def test_functions_of_one_code_share_it_there_too_and_so_do_later_journeys():
    def counter(start):
        return lambda: start

    one, two = again((counter(1), counter(2)))
    assert (one(), two()) == (1, 2)
    assert one.__code__ is two.__code__ is again(counter(3)).__code__


def test_code_that_marshal_cannot_take_travels_in_parts():
    kind = notebook("class Odd: pass")["Odd"]
    cell = notebook("def work(): return 'here'")
    code = cell["work"].__code__
    odd = kind()
    odd.name = "odd"
    cell["work"].__code__ = code.replace(co_consts=tuple(odd if one == "here" else one for one in code.co_consts))
    assert again(cell["work"])().name == "odd"


LABELLED = """
import functools

@functools.lru_cache(maxsize=2)
def area(side):
    return side * side

area.unit, area.mate = "cm2", area
double = functools.cache(functools.partial(pow, exp=2))
"""


def test_a_cached_function_keeps_its_attributes():
    area = notebook(LABELLED)["area"]
    made = again(area)
    assert made is not area
    assert (made(3), made.unit, made.mate, made.cache_parameters()["maxsize"]) == (9, "cm2", made, 2)
    assert (made.__name__, made.__module__) == ("area", "__main__")


def test_a_cached_function_that_has_no_name_travels():
    made = again(notebook(LABELLED)["double"])
    assert (made(3), made(3), made.cache_info().hits) == (9, 9, 1)

"""What a notebook may define and cloudpickle does not take, or not whole: each kind as what pickle needs to make it again."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

from course.ranks.functions import has_a_home

Parts = tuple[Any, ...]

_dispatcher: Any = functools.singledispatch(lambda x: x)


def dispatches(function: Any) -> bool:
    """Whether it is one of ``functools.singledispatch``, whose caches hold weak references."""
    return function.__code__ is _dispatcher.__code__


def take_dispatcher_apart(function: Any) -> Parts:
    others = tuple((kind, each) for kind, each in function.registry.items() if kind is not object)
    return _dispatcher_again, (function.__wrapped__, others)


def _dispatcher_again(function: Callable[..., Any], others: tuple[tuple[type, Callable[..., Any]], ...]) -> Any:
    made = functools.singledispatch(function)
    for kind, each in others:
        made.register(kind, each)
    return made


def has_slots(obj: Any) -> bool:
    """Not those of an enum or a named tuple, which see to that themselves."""
    if not isinstance(obj, type) or "__slots__" not in obj.__dict__:
        return False
    return not issubclass(obj, Enum) and typing.NamedTuple not in getattr(obj, "__orig_bases__", ())


def with_slots(kind: type, parts: Parts) -> Parts:
    """cloudpickle's ``parts`` of a class, and its slots: without them its instances could not come back."""
    make, (meta, name, bases, space, *rest), *state = parts
    return make, (meta, name, bases, {**space, "__slots__": kind.__dict__["__slots__"]}, *rest), *state


def _take_property_apart(prop: functools.cached_property[Any]) -> Parts:
    """Python 3.11 gives it a lock."""
    return _property_again, (prop.func, prop.attrname)


def _property_again(function: Callable[..., Any], name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _take_new_type_apart(kind: typing.NewType) -> Parts:
    return _named_again, (typing.NewType, kind.__name__, kind.__module__, kind.__supertype__)


def _take_parameters_apart(kind: typing.ParamSpec | typing.TypeVarTuple) -> Parts:
    return _named_again, (type(kind), kind.__name__, kind.__module__)


def _named_again(make: Callable[..., Any], name: str, module: str, *more: Any) -> Any:
    made = make(name, *more)
    made.__module__ = module
    return made


_TAKE_APART: dict[type, Callable[[Any], Parts]] = {
    functools.cached_property: _take_property_apart,
    typing.NewType: _take_new_type_apart,
    typing.ParamSpec: _take_parameters_apart,
    typing.TypeVarTuple: _take_parameters_apart,
}


def take_apart(obj: Any) -> Parts | None:
    """None for all other kinds, and for those that a module holds."""
    take = _TAKE_APART.get(type(obj))
    return None if take is None or (hasattr(obj, "__name__") and has_a_home(obj)) else take(obj)

"""What a notebook may define and cloudpickle does not take, or not whole: each kind as what pickle needs to make it again."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import typing
from collections.abc import Callable
from enum import Enum, EnumType
from typing import Any

import cloudpickle
from cloudpickle.cloudpickle import _make_skeleton_class as _make_class

from course.ranks.functions import has_a_home

Parts = tuple[Any, ...]

_dispatcher: Any = functools.singledispatch(lambda x: x)


def dispatches(function: Any) -> bool:
    """Whether it is one of ``functools.singledispatch``, whose caches hold weak references."""
    return function.__code__ is _dispatcher.__code__


def take_dispatcher_apart(function: Any) -> Parts:
    others = tuple((kind, each) for kind, each in function.registry.items() if kind is not object)
    own = {name: value for name, value in vars(function).items() if name not in vars(_dispatcher)}
    return _dispatcher_again, (function.__wrapped__, others), own


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


def _reduced(kind: type) -> Any:
    """cloudpickle's parts of a class that goes by value."""
    return cloudpickle.Pickler(io.BytesIO()).reducer_override(kind)


def _take_enum_apart(kind: EnumType) -> Parts | None:
    """An enum without members, and then all that it has, its members among it: they may lead back to it.

    cloudpickle makes the members anew from their values: what ``__new__`` or ``__init__`` gave them would be lost.
    """
    if not isinstance(parts := _reduced(kind), tuple):
        return None
    _, (bases, name, qualname, _, module, *rest), (others, slots), _, _, fill = parts
    own = {key: value for key, value in vars(kind).items() if _is_of_enum(kind, key)}
    own["_value2member_map_"] = {value: one for value, one in kind._value2member_map_.items() if _has_name(one)}
    others = {key: value for key, value in others.items() if key not in own}
    space = {"__module__": module, "__qualname__": qualname}
    return _make_class, (type(kind), name, bases, space, *rest), (own, (others, slots), fill), None, None, _fill_enum


def _is_of_enum(kind: EnumType, key: str) -> bool:
    """Whether the enum's own machinery has set this: its members, and what it keeps of them."""
    return key in kind.__members__ or (key[:1] == key[-1:] == "_" and key[:2] != "__") or key == "__new_member__"


def _fill_enum(kind: EnumType, parts: Parts) -> None:
    own, state, fill = parts
    if not kind._member_names_:  # else it was here before, with all members
        _fill_class(kind, own)
    fill(kind, state)


def _take_member_apart(member: Enum) -> Parts | None:
    kind = type(member)
    if not isinstance(_reduced(kind), tuple):
        return None
    if not _has_name(member):  # flags put together
        return kind, (member._value_,)
    data: Any = object.__reduce_ex__(member, 2)[1]
    state = {key: value for key, value in vars(member).items() if key != "_inverted_"}  # which is put together again
    return _member, (kind, member._name_, *(one for one in data if one is not kind)), state, None, None, _fill_member


def _has_name(member: Enum) -> bool:
    return type(member).__members__.get(member._name_) is member


def _member(kind: Any, name: str, *data: Any) -> Enum:
    """Only its name is set, for its hash: the rest of its enum may not be there yet."""
    if name not in kind._member_map_:
        if hasattr(kind, "__abstractmethods__"):
            kind.__abstractmethods__ = frozenset()  # it has members, so its methods will come
        made = kind._member_map_[name] = kind._member_type_.__new__(kind, *data)
        made._name_ = name
    return kind._member_map_[name]


def _fill_member(member: Enum, state: dict[str, Any]) -> None:
    vars(member).update(state)


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


class _Typed(typing.TypedDict):
    pass


_Dict: Any = type(_Typed)


def _take_typed_dict_apart(kind: Any) -> Parts:
    """It is not what its own ``class`` statement says: a dict, which inherits from no other typed one."""
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return _typed_dict_again, (kind.__name__, kind.__bases__), own, None, None, _fill_class


def _typed_dict_again(name: str, bases: tuple[type, ...]) -> Any:
    return type.__new__(_Dict, name, bases, {})


def _fill_class(kind: type, own: dict[str, Any]) -> None:
    for name, value in own.items():
        type.__setattr__(kind, name, value)  # an enum's own refuses to set a member


_Manager: Any = type(contextlib.contextmanager(lambda: iter(()))())  # what such a function returns; it may decorate others


def _take_manager_apart(manager: Any) -> Parts | None:
    """None for one that was entered."""
    is_new = inspect.getgeneratorstate(manager.gen) == inspect.GEN_CREATED
    return (type(manager), (manager.func, manager.args, manager.kwds)) if is_new else None


_TAKE_APART: dict[type, Callable[[Any], Parts | None]] = {
    _Dict: _take_typed_dict_apart,
    _Manager: _take_manager_apart,
    functools.cached_property: _take_property_apart,
    typing.NewType: _take_new_type_apart,
    typing.ParamSpec: _take_parameters_apart,
    typing.TypeVarTuple: _take_parameters_apart,
}


def take_apart(obj: Any) -> Parts | None:
    """None for all other kinds, and for those that a module holds."""
    if isinstance(obj, Enum):
        return _take_member_apart(obj)
    if isinstance(obj, EnumType):
        return _take_enum_apart(obj)
    take = _TAKE_APART.get(type(obj))
    return None if take is None or (hasattr(obj, "__name__") and has_a_home(obj)) else take(obj)

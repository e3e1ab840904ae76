"""What a notebook may define and cloudpickle does not take, or not whole: each kind as what pickle needs to make it again."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from enum import Enum, EnumType
from typing import Any

import cloudpickle
from cloudpickle.cloudpickle import _make_skeleton_class as _make_class

from course.ranks.functions import has_a_home

Parts = tuple[Any, ...]
OF_PYTHON = ("__dict__", "__weakref__")  # what each class has, and none needs

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


def class_parts(kind: type, parts: Parts) -> Parts:
    """cloudpickle's ``parts`` of a class that goes by value, and what they leave out.

    Without its slots, its instances could not come back. A class that is known where it arrives is taken as it is there: making
    another one would tell its bases and its metaclass of a new class.
    """
    if len(parts) != WHOLE:
        return parts
    make, (meta, name, bases, space, *rest), state, _, _, fill = parts
    more = {"__qualname__": kind.__qualname__} if kind.__qualname__ != name else {}
    if "__slots__" in vars(kind) and typing.NamedTuple not in getattr(kind, "__orig_bases__", ()):  # which sees to that itself
        more["__slots__"] = vars(kind)["__slots__"]
    return _class_again, (make, meta, name, bases, {**space, **more}, *rest), (fill, state), None, None, _fill_again


WHOLE = 6  # parts, of a class of which another process knows nothing
_made: weakref.WeakSet[type] = weakref.WeakSet()  # classes that were defined in another process


def _class_again(
    make: Callable[..., type], meta: type, name: str, bases: tuple[Any, ...], space: Any, track: str, *rest: Any
) -> type:
    known: type | None = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(track)
    if known is not None:
        return known
    with _without_hooks(meta, bases):
        made = make(meta, name, bases, space, track, *rest)
    _made.add(made)
    return made


def _fill_again(kind: type, parts: Parts) -> None:
    fill, state = parts
    if kind in _made:  # else it was defined here, and is as it is here
        fill(kind, state)


@contextlib.contextmanager
def _without_hooks(meta: type, bases: tuple[Any, ...]) -> Iterator[None]:
    """What a learner's bases and metaclass do with a new class was done where it was defined, with arguments that are not known."""
    hooks = [(kind, "__init_subclass__") for base in types.resolve_bases(bases) for kind in base.__mro__]
    hooks += [(kind, name) for kind in meta.__mro__ for name in ("__prepare__", "__new__", "__init__")]
    held = {(kind, name): vars(kind)[name] for kind, name in hooks if kind in _made and name in vars(kind)}
    for kind, name in held:
        type.__setattr__(kind, name, _passed_on(kind, name))
    try:
        yield
    finally:
        for (kind, name), hook in held.items():
            type.__setattr__(kind, name, hook)


def _passed_on(kind: type, name: str) -> Any:
    """Instead of a hook of ``kind``: the next one, without arguments by name."""

    def passed_on(own: Any, *given: Any, **_: Any) -> Any:
        following = getattr(super(kind, own), name)
        return following(own, *given) if name == "__new__" else following(*given)

    return passed_on if name in ("__new__", "__init__") else classmethod(passed_on)


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
    make = _class_again, (_make_class, type(kind), name, bases, space, *rest)
    return *make, (own, (others, slots), fill), None, None, _fill_enum


def _is_of_enum(kind: EnumType, key: str) -> bool:
    """Whether the enum's own machinery has set this: its members, and what it keeps of them."""
    return key in kind.__members__ or (key[:1] == key[-1:] == "_" and key[:2] != "__") or key == "__new_member__"


def _fill_enum(kind: EnumType, parts: Parts) -> None:
    own, state, fill = parts
    if not kind._member_names_:  # else it was here before, with all members
        _fill_class(kind, own)
    _fill_again(kind, (fill, state))


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
    if type(member) in _made:
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
    own = {name: value for name, value in vars(kind).items() if name not in OF_PYTHON}
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

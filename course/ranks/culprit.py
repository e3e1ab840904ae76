"""What keeps a function from being sent to the ranks, by the name that the learner's own code gives it."""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
from typing import Any

from course.ranks import special, wire
from course.ranks.functions import content_of, globals_of

MOST = 1000  # items that are tried one by one
DEEPEST = 50  # what holds what holds what ...


def culprit(function: Any, args: tuple[Any, ...]) -> str:
    """The first thing that cannot be pickled."""
    for i, arg in enumerate(args):
        if not _travels(arg):
            return _among(arg, f"argument {i + 1}", set()) or f"argument {i + 1} ({_kind(arg)})"
    return _among(function, "the function", set()) or f"this {_kind(function)}"


def _among(user: Any, name_of_user: str, seen: set[int]) -> str:
    """The first of what ``user`` uses or holds that cannot be pickled, and in that the innermost one."""
    for name, value in _parts(user).items() if len(seen) < DEEPEST else ():
        if id(value) not in seen and not _travels(value):
            seen.add(id(value))
            its_name = f"item {name}" if isinstance(name, int) else repr(name)
            return _among(value, its_name, seen) or _sentence(name, value, user, name_of_user)
    return ""


def _sentence(name: Any, value: Any, user: Any, name_of_user: str) -> str:
    if isinstance(user, dict) or isinstance(name, int):
        return f"the item {name!r} ({_kind(value)}), which {name_of_user} holds,"
    return f"the variable {name!r} ({_kind(value)}), which {name_of_user} uses,"


def _kind(value: Any) -> str:
    return "compiled function" if hasattr(value, "_torchdynamo_orig_callable") else type(value).__name__


def _parts(value: Any) -> dict[Any, Any]:
    """What the learner sees of a function or class: by name, the things that travel with it."""
    if _kind(value) == "compiled function":
        return {}
    if type(value) in (dict, list, tuple):
        return dict(value if isinstance(value, dict) else enumerate(value)) if len(value) <= MOST else {}
    if isinstance(value, functools.partial):
        return {getattr(value.func, "__name__", "func"): value.func, **dict(enumerate(value.args)), **value.keywords}
    if isinstance(value, MethodType):
        return {"self": value.__self__, value.__name__: value.__func__}
    if isinstance(value, type):
        own = vars(value) if value.__module__ == "__main__" else {}
        return {name: part for name, part in own.items() if name not in special.OF_PYTHON}
    if isinstance(value, property):
        return {part.__name__: part for part in (value.fget, value.fset, value.fdel) if part is not None}
    return _parts_of_function(value) if isinstance(value, FunctionType) else _parts_of_object(value)


def _parts_of_object(value: Any) -> dict[Any, Any]:
    if wrapped := _parts(value.__wrapped__) if hasattr(value, "__wrapped__") else {}:
        return wrapped
    kind = type(value)
    if kind.__module__ != "__main__":
        return getattr(value, "_modules", {})  # of torch
    slots = (name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ()) if hasattr(value, name))
    held = {name: getattr(value, name) for name in slots}
    return {kind.__name__: kind, **held, **getattr(value, "__dict__", {}), **getattr(value, "_modules", {})}


def _parts_of_function(function: FunctionType) -> dict[str, Any]:
    if special.dispatches(function):
        registry: Any = vars(function)["registry"]
        return {f"{each.__name__} for {kind.__name__}": each for kind, each in registry.items()}
    space, code = function.__globals__, function.__code__
    shared = {name: space[name] for name in globals_of(code) if name in space}
    enclosed = dict(zip(code.co_freevars, map(content_of, function.__closure__ or ()), strict=True))
    defaults = dict(zip(code.co_varnames[: code.co_argcount][::-1], (function.__defaults__ or ())[::-1], strict=False))
    return shared | enclosed | defaults | (function.__kwdefaults__ or {}) | function.__dict__


def _travels(value: Any) -> bool:
    try:
        wire.dumps(value)
    except Exception:
        return False
    return True

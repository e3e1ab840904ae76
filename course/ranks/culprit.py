"""What keeps a function from being sent to the ranks, by the name that the learner's own code gives it."""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
from typing import Any

from course.ranks import wire
from course.ranks.functions import content_of, globals_of


def culprit(function: Any, args: tuple[Any, ...]) -> str:
    """The first thing that cannot be pickled."""
    for i, arg in enumerate(args):
        if not _travels(arg):
            return _among(_parts(arg), f"argument {i + 1}", set()) or f"argument {i + 1} ({type(arg).__name__})"
    return _among(_parts(function), "the function", set()) or "this function"


def _among(used: dict[str, Any], user: str, seen: set[int]) -> str:
    """The first of what ``user`` uses that cannot be pickled, and in that the innermost one."""
    for name, value in used.items():
        if id(value) not in seen and not _travels(value):
            seen.add(id(value))
            return _among(_parts(value), repr(name), seen) or f"the variable {name!r} ({type(value).__name__}), which {user} uses,"
    return ""


def _parts(value: Any) -> dict[str, Any]:
    """What the learner sees of a function or class: by name, the things that travel with it."""
    if isinstance(value, functools.partial):
        return {getattr(value.func, "__name__", "func"): value.func, **value.keywords}
    if isinstance(value, MethodType):
        return {"self": value.__self__, value.__name__: value.__func__}
    if isinstance(value, type):
        return dict(vars(value)) if value.__module__ == "__main__" else {}
    if not isinstance(value, FunctionType):
        kind = type(value)
        wrapped = _parts(value.__wrapped__) if hasattr(value, "__wrapped__") else {}
        return wrapped or ({kind.__name__: kind, **getattr(value, "__dict__", {})} if kind.__module__ == "__main__" else {})
    space, code = value.__globals__, value.__code__
    shared = {name: space[name] for name in globals_of(code) if name in space}
    return shared | dict(zip(code.co_freevars, map(content_of, value.__closure__ or ()), strict=True))


def _travels(value: Any) -> bool:
    try:
        wire.dumps(value)
    except Exception:
        return False
    return True

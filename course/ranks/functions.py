"""A function that no module holds, such as a notebook's, taken apart on one side and made again on the other.

The globals that it names and what its closure holds go with it, and functions of one notebook share one namespace there as they
do here. cloudpickle, which packs all else, would do this too, but for each package that a function names it looks at every module
there is: with torch loaded that takes a millisecond or two.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # the last two: of a class
_SURROUNDINGS = ("__name__", "__package__", "__path__", "__file__")  # for relative imports
_ATTRIBUTES = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__")

Cached = type(functools.cache(lambda: None))


def has_a_home(function: Any) -> bool:
    """Whether the other side finds ``function`` by its module and name."""
    found: Any = sys.modules.get(function.__module__)
    if found is None or function.__module__ == "__main__":
        return False
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def take_apart(function: FunctionType, namespaces: dict[int, dict[str, Any]]) -> tuple[Any, ...]:
    """What pickle needs to make ``function`` again. ``namespaces``: those of this pickle so far, by the id of their original."""
    code, space, cells = function.__code__, function.__globals__, function.__closure__ or ()
    namespace = namespaces.get(id(space))
    if namespace is None:
        namespace = namespaces[id(space)] = {name: space[name] for name in _SURROUNDINGS if name in space}
    used = {name: space[name] for name in globals_of(code) if name in space}
    parts = tuple(submodules(code, (*used.values(), *map(_content, cells))))
    attributes = tuple([getattr(function, name) for name in _ATTRIBUTES])
    return _begin, (code, namespace, len(cells)), (used, cells, parts, attributes, function.__dict__ or None), None, None, _complete


def _begin(code: CodeType, namespace: dict[str, Any], cells: int) -> FunctionType:
    """A function without all that may lead back to itself."""
    namespace["__builtins__"] = builtins
    return FunctionType(code, namespace, closure=tuple([CellType() for _ in range(cells)]))


def _complete(function: FunctionType, state: tuple[Any, ...]) -> None:
    used, cells, parts, attributes, own = state
    for part in parts:
        importlib.import_module(part)
    function.__globals__.update(used)
    for mine, theirs in zip(function.__closure__ or (), cells, strict=True):
        with contextlib.suppress(ValueError):  # an empty one
            mine.cell_contents = theirs.cell_contents
    for name, value in zip(_ATTRIBUTES, attributes, strict=True):
        setattr(function, name, value)
    if own:
        function.__dict__.update(own)


def take_cached_apart(cached: Any) -> tuple[Any, ...]:
    """The same for a function under ``functools.cache`` or ``lru_cache``: it starts with an empty cache there."""
    return _cache_again, (cached.__wrapped__, cached.cache_parameters())


def _cache_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


@functools.lru_cache(maxsize=1024)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """The global names that ``code`` may use, and the functions and classes defined in it."""
    here = [step.argval for step in dis.get_instructions(code) if step.opname in _GLOBALS]
    inner = [name for part in _inner(code) for name in globals_of(part)]
    return tuple(dict.fromkeys(here + inner))


@functools.lru_cache(maxsize=1024)
def _names_of(code: CodeType) -> frozenset[str]:
    """All names in ``code``, those of attributes too."""
    return frozenset(code.co_names).union(*map(_names_of, _inner(code)))


def _inner(code: CodeType) -> list[CodeType]:
    return [part for part in code.co_consts if isinstance(part, CodeType)]


def submodules(code: CodeType, values: Iterable[Any]) -> Iterator[str]:
    """Loaded modules that ``code`` may reach through a package among ``values``, as in "torch.nn.functional.relu".

    Importing the package alone does not import them.
    """
    for value in values:
        if isinstance(value, ModuleType):
            yield from _parts(value.__name__, _names_of(code))


def _parts(package: str, names: frozenset[str]) -> Iterator[str]:
    for name in names:
        part = f"{package}.{name}"
        if part in sys.modules:
            yield part
            yield from _parts(part, names)


def _content(cell: Any) -> Any:
    with contextlib.suppress(ValueError):  # an empty one
        return cell.cell_contents

"""A function that no module holds, such as a notebook's, taken apart on one side and made again on the other.

The globals that it names and what its closure holds go with it; functions of one notebook share their variables there as they do
here. cloudpickle, which packs all else, would do this too, but for each package that a function names it looks at every module
there is: with torch loaded that takes a millisecond or two.

A function may lead back to itself, through its globals, its closure or its defaults. Pickle can follow such a circle where what
closes it (a cell, a function's state) is filled only after it is made. Each function is given the globals that it names by itself:
it may be called while the others are still made, to hash a key or to make an exception.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import importlib
import marshal
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # the last two: of a class
_SURROUNDINGS = ("__name__", "__package__", "__path__", "__file__")  # for relative imports
_ATTRIBUTES = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__")
_attributes = operator.attrgetter(*_ATTRIBUTES)

Cached = type(functools.cache(lambda: None))


def has_a_home(obj: Any) -> bool:
    """Whether the other side finds ``obj``, a function or another thing with a name, by its module and name."""
    found: Any = sys.modules.get(obj.__module__)
    if found is None or obj.__module__ == "__main__":
        return False
    names: str = getattr(obj, "__qualname__", "") or getattr(obj, "__name__", "")  # a cached partial has neither
    for name in names.split("."):
        found = getattr(found, name, None)
    return found is obj


def take_apart(function: FunctionType, shared: Shared) -> tuple[Any, ...]:
    """What pickle needs to make ``function`` again."""
    code, space, cells = function.__code__, function.__globals__, function.__closure__
    used = {name: space[name] for name in globals_of(code) if name in space}
    parts = tuple(submodules(code, (*used.values(), *map(content_of, cells or ()))))
    made = _put_together, (shared.code(code), shared.namespace(space), cells, parts)
    attributes = _own_attributes(function)
    if used:
        return *made, (used, function.__dict__, attributes), None, None, _fill
    return *made, (function.__dict__, attributes) if function.__dict__ or attributes else None


def _own_attributes(function: FunctionType) -> dict[str, Any]:
    """Those that it would not have as one just made of its code."""
    plain = FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    pairs = zip(_ATTRIBUTES, _attributes(function), _attributes(plain), strict=True)
    own = {name: value for name, value, other in pairs if value is not other}
    return own | {"__annotations__": function.__annotations__} if function.__annotations__ else own


def _put_together(
    code: bytes | CodeType, namespace: dict[str, Any], cells: tuple[Any, ...] | None, parts: tuple[str, ...]
) -> FunctionType:
    namespace["__builtins__"] = builtins  # C code that imports, such as torch.full, looks for them here
    for part in parts:
        importlib.import_module(part)
    return FunctionType(_code_of(code) if isinstance(code, bytes) else code, namespace, closure=cells)


def _fill(function: FunctionType, state: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    used, own, attributes = state
    function.__globals__.update(used)
    function.__dict__.update(own)
    for name, value in attributes.items():
        setattr(function, name, value)


class Shared:
    """What the functions of one pickle have in common: their code, and their namespaces, each one dictionary there."""

    def __init__(self) -> None:
        self._namespaces: dict[int, dict[str, Any]] = {}
        self._codes: dict[int, bytes | CodeType] = {}

    def namespace(self, space: dict[str, Any]) -> dict[str, Any]:
        """To be filled; only the surroundings are there."""
        if id(space) not in self._namespaces:
            self._namespaces[id(space)] = {name: space[name] for name in _SURROUNDINGS if name in space}
        return self._namespaces[id(space)]

    def code(self, code: CodeType) -> bytes | CodeType:
        """Whole, with the file that every traceback names, and ten times faster than in parts."""
        if id(code) not in self._codes:
            try:
                self._codes[id(code)] = marshal.dumps(code)
            except ValueError:  # of a tool that put objects of its own among the constants: in parts
                self._codes[id(code)] = code
        return self._codes[id(code)]


@functools.lru_cache(maxsize=1024)
def _code_of(marshalled: bytes) -> CodeType:
    """The same code at every run: what Python has learned of it is kept."""
    code: CodeType = marshal.loads(marshalled)
    return code


def take_cell_apart(cell: CellType) -> tuple[Any, ...]:
    """The same for one variable of a closure, which may be empty still."""
    try:
        return _cell, (), (None, {"cell_contents": cell.cell_contents})
    except ValueError:
        return _cell, ()


def _cell() -> CellType:
    return CellType()


def take_cached_apart(cached: Any) -> tuple[Any, ...]:
    """The same for a function under ``functools.cache`` or ``lru_cache``: it starts with an empty cache there."""
    function = cached.__wrapped__
    given = {name: value for name, value in vars(cached).items() if getattr(function, name, None) is not value}
    own = {name: value for name, value in given.items() if name not in ("__wrapped__", "cache_parameters")}
    return _cache_again, (function, cached.cache_parameters()), own or None


def _cache_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


@functools.lru_cache(maxsize=1024)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """The global names that ``code`` may use, and the functions and classes defined in it."""
    inner = (name for part in _inner(code) for name in globals_of(part))
    return tuple(dict.fromkeys([*_globals_here(code), *inner]))


def _globals_here(code: CodeType) -> Iterator[str]:
    own = set()  # the names that a class has given a value so far
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            own.add(step.argval)
        elif step.opname in _GLOBALS and not (step.opname == "LOAD_NAME" and step.argval in own):
            yield step.argval


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


def content_of(cell: Any) -> Any:
    with contextlib.suppress(ValueError):  # an empty one
        return cell.cell_contents

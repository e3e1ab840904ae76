"""A learner's own file that has the name of a library, such as ``torch.py``: Python takes it for the library.

This imports nothing that such a file could stand for.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType


def refuse_namesakes(*libraries: str) -> None:
    """Raise ImportError where a file is in the way of one of ``libraries``, loaded or not."""
    for name in libraries:
        if said := _told(name):
            raise ImportError(said)


def behind(error: BaseException | None) -> str:
    """What to do, in a sentence, where such a file has led to ``error``; else nothing."""
    while error is not None:
        module = getattr(error, "obj", None)  # that had no such attribute
        name = module.__name__ if isinstance(module, ModuleType) else getattr(error, "name", None)
        if isinstance(error, (ImportError, AttributeError)) and isinstance(name, str) and (said := _told(name.partition(".")[0])):
            return said
        error = error.__cause__ or error.__context__
    return ""


def _told(name: str) -> str:
    spec = getattr(sys.modules.get(name), "__spec__", None) or PathFinder.find_spec(name)
    if spec is None or not spec.has_location or not spec.origin:
        return ""
    mine = spec.origin if spec.submodule_search_locations is None else os.path.dirname(spec.origin)
    folder = _real(os.path.dirname(mine))
    if _is_of_libraries(folder):
        return ""
    others = [*sys.path, os.path.dirname(os.path.dirname(__file__))]  # the last one: of minipar, if only a link to it is installed
    library = PathFinder.find_spec(name, [path for path in others if isinstance(path, str) and _real(path) != folder])
    if library is None or not library.has_location:
        return ""
    return f"{mine} has the name of the library {name!r}, and Python takes it for the library: rename it and restart the kernel"


def _is_of_libraries(folder: str) -> bool:
    standard = _real(os.path.dirname(os.__file__))
    return os.path.basename(folder) in ("site-packages", "dist-packages", "lib-dynload") or folder == standard


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # "", where the working folder has been removed
        return path

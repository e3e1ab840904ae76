"""The namespace of ``%%ranks`` cells, on the rank's side."""

from __future__ import annotations

import ast
import linecache
import sys
from typing import Any


def run_cell(source: str, file: str) -> None:
    """Run a cell in this rank's ``__main__``; print its last expression, unless that is None."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source, file)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    namespace = sys.modules["__main__"].__dict__
    exec(compile(tree, file, "exec"), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), file, "eval"), namespace)
        if value is not None:
            print(repr(value))


def push(variables: dict[str, Any]) -> None:
    sys.modules["__main__"].__dict__.update(variables)


def pull(name: str) -> Any:
    namespace = sys.modules["__main__"].__dict__
    if name not in namespace:
        raise NameError(f"no %%ranks cell has set a variable {name!r} on this rank")
    return namespace[name]

"""``%%ranks``: a cell that runs on every rank, with variables that stay there from cell to cell."""

from __future__ import annotations

import argparse
import itertools
import linecache
import shlex
from typing import Any, NoReturn

from course.ranks.ranks import Ranks

_numbers = itertools.count(1)
_own: Ranks | None = None  # the pool that %%ranks made itself


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%ranks: {message}. Use: %%ranks [number of ranks] [--timeout seconds] [--hardware preset]")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%ranks", add_help=False)
    parser.add_argument("n", type=int, nargs="?")
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--hardware")
    return parser


def ranks_cell(line: str, cell: str) -> None:
    """Run the cell on every rank. ``rank``, ``world_size``, ``torch`` and ``dist`` are there; the last expression is printed.

    It runs on the notebook's variable ``ranks``, if that is a pool (of the given size); else on a pool of its own.
    """
    wanted = _parser().parse_args(shlex.split(line))
    file = f"<%%ranks {next(_numbers)}>"
    _refuse_bad_syntax(cell, file)
    linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
    _pool(wanted.n, wanted.hardware).run_cell(cell, file, timeout=wanted.timeout)


def _refuse_bad_syntax(cell: str, file: str) -> None:
    """A syntax error is the notebook's business; where only the notebook's own cells may say so, it tells what to do."""
    try:
        compile(cell, file, "exec")
    except SyntaxError as error:
        if (error.text or "").lstrip().startswith(("%", "!")):
            error.msg = "a cell for the ranks is plain Python: put lines that begin with % or ! into a cell of their own"
        elif error.msg.startswith(("'await'", "'async", "asynchronous")):
            error.msg += "; ranks have no event loop of their own: write asyncio.run(...) instead"
        raise


def _pool(n: int | None, hardware: str | None) -> Ranks:
    global _own
    named = _shell().user_ns.get("ranks")
    for pool in (named, _own):
        if isinstance(pool, Ranks) and not pool.closed and _fits(pool, n, hardware):
            return pool
    if _own is not None:
        _own.close()
    _own = Ranks(n or 4, hardware=hardware)
    print(f"{_own.n} ranks started for %%ranks cells")
    return _own


def _fits(pool: Ranks, n: int | None, hardware: str | None) -> bool:
    return n in (None, pool.n) and (hardware is None or getattr(pool.hardware, "name", None) == hardware)


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


def register(shell: Any) -> None:
    """Make ``%%ranks`` known to an IPython shell."""
    shell.register_magic_function(ranks_cell, magic_kind="cell", magic_name="ranks")

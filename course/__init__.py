"""What the notebooks use: ranks behind a cell, live pictures, labs and checked exercises.

The names below are loaded when first used, so that importing one room does not wait for the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course.ranks.ranks import Ranks
    from course.ranks.run import Run

__all__ = ["Ranks", "Run"]

_HOMES = {"Ranks": "course.ranks.ranks", "Run": "course.ranks.run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'course' has no attribute {name!r}; it offers {', '.join(__all__)}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except (ImportError, AttributeError) as error:
        from course.namesake import behind

        if said := behind(error):
            raise ImportError(said) from error
        raise


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext course``: make ``%%ranks`` known. Importing ``Ranks`` in a notebook does it too."""
    from course.ranks import magic

    magic.register(shell)

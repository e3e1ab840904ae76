"""Grids of cases: the usual ones always, all of them on a long evening (``pytest -m full``)."""

import pytest


def grid(*chosen: tuple[str, ...], of: list[tuple]) -> list:
    """All points ``of`` a grid; those that are not ``chosen`` belong to the long evening."""
    assert set(chosen) <= set(of)
    return [pytest.param(*point, id="-".join(map(str, point)), marks=() if point in chosen else pytest.mark.full) for point in of]

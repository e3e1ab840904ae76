"""Warm ranks for every test that asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several ranks share few cores

import pytest
import torch

from course import Ranks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` run where torch sees a CUDA device, and say so where it does not."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device here"))


@pytest.fixture(scope="session")
def _pools() -> Iterator[dict[int, Ranks]]:
    pools: dict[int, Ranks] = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang is looked into after a tenth of the usual patience: what is told does not depend on it, only how soon."""
    from course.ranks import watchdog

    monkeypatch.setattr(watchdog, "PATIENCE", watchdog.PATIENCE / 10)


@pytest.fixture
def ranks(_pools: dict[int, Ranks]) -> Callable[[int], Ranks]:
    """``ranks(4)``: four idle ranks, kept between tests. A test that leaves them working gets them stopped before the next one."""

    def warm(n: int) -> Ranks:
        pool = _pools.get(n)
        if pool is not None and pool.last_run is not None and not pool.last_run.done:
            pool.last_run.stop()
        if pool is None or pool.closed:
            pool = _pools[n] = Ranks(n)
        return pool

    return warm

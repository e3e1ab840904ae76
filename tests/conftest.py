"""Warm ranks for every test that asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several ranks share few cores

import psutil
import pytest
import torch

from course import Ranks

MOST_THREADS = 60  # of all ranks of an idle pool; four fresh ranks have twenty


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


@pytest.fixture(scope="module", autouse=True)
def _rest(_pools: dict[int, Ranks]) -> Iterator[None]:
    """After each file, ranks that have gathered many process groups end: even idle ones cost gloo threads that never sleep."""
    yield
    for n, pool in list(_pools.items()):
        if not pool.closed and _threads(pool) > MOST_THREADS:
            pool.close()
        if pool.closed:
            del _pools[n]


def _threads(pool: Ranks) -> int:
    count = 0
    for pid in pool.pids:
        with suppress(psutil.NoSuchProcess):  # a rank that a test has killed
            count += psutil.Process(pid).num_threads()
    return count


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

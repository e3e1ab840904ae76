"""The bubbles of the zero-bubble paper, from its own profiled times: rates over each rank's own span."""

from __future__ import annotations

import pytest

from minipar.pipeline_parallel import build
from minipar.pipeline_parallel.zb_auto import KEPT
from tests.pipeline_parallel.published import TABLE_5, Row

rows = pytest.mark.parametrize("row", TABLE_5.values(), ids=TABLE_5)
FOUR_DECIMALS = 5.01e-5  # half of the last printed digit


@rows
def test_1f1b_to_four_decimals(row: Row) -> None:
    assert abs(build("1f1b", row.ranks, row.microbatches).simulate(**row.costs).bubble - row.one_f_one_b) < FOUR_DECIMALS


@rows
def test_zb_h1_to_four_decimals(row: Row) -> None:
    assert abs(build("zb-h1", row.ranks, row.microbatches).simulate(**row.costs).bubble - row.zb_h1) < FOUR_DECIMALS


@rows
def test_interleaved_within_four_thousandths(row: Row) -> None:
    schedule = build("interleaved", row.ranks, row.microbatches, chunks=row.chunks)
    assert abs(schedule.simulate(**row.chunk_costs).bubble - row.interleaved) < 4e-3


@rows
@pytest.mark.parametrize("times", [1, 2])
def test_zb_auto_no_worse_than_published(row: Row, times: int) -> None:
    schedule = build("zb-auto", row.ranks, row.microbatches, memory=times * row.ranks, **row.costs)
    schedule.validate()
    published = row.zb_1p if times == 1 else row.zb_2p
    assert schedule.simulate(**row.costs).bubble <= published + 0.002
    assert _most_held(schedule.rows) <= times * row.ranks + 1e-9


def _most_held(rows: list) -> float:
    """The most activations a rank holds, in microbatches, when all but the share KEPT is free after I."""
    worst = 0.0
    for row in rows:
        held = 0.0
        for action in row:
            held += {"F": 1, "I": KEPT - 1, "W": -KEPT, "B": -1}[action.kind]
            worst = max(worst, held)
    return worst

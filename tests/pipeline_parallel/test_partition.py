"""The cut of layers into stages is exact."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipar.pipeline_parallel import partition


def slowest(costs: list[float], sizes: list[int]) -> float:
    return max(sum(costs[a:b]) for a, b in pairwise(accumulate(sizes, initial=0)))


@settings(max_examples=200, deadline=None)
@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=9), data=st.data())
def test_no_cut_has_a_faster_slowest_stage(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    sizes = partition(costs, stages)
    assert len(sizes) == stages
    assert sum(sizes) == len(costs)
    assert min(sizes) >= 1
    cuts = ([b - a for a, b in pairwise([0, *cut, len(costs)])] for cut in combinations(range(1, len(costs)), stages - 1))
    assert slowest(costs, sizes) == min(slowest(costs, other) for other in cuts)


@pytest.mark.parametrize(
    ("costs", "stages", "words"),
    [
        ([1, 1], 3, "2 layers do not fill 3 stages"),
        ([1, -1], 1, "layer 1 is -1"),
        ([float("nan")], 1, "layer 0 is nan"),
        ([1], 0, "stages=0"),
    ],
)
def test_what_cannot_be_cut_is_refused(costs: list[float], stages: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        partition(costs, stages)

"""The predicted timeline of a bucketed step: buckets close as the library closes them, one transfer at a time."""

import pytest

from minipar.data_parallel import predicted
from minipar.hardware import Cluster, Device, Link
from minipar.trace import COMM

LINK = Link("toy", latency=1.0, bandwidth=10.0)
TOY = Cluster("toy", Device("toy", 1, 1, 1), LINK, LINK)


@pytest.mark.parametrize(
    ("bucket", "expected"),
    [(1, [[3], [2], [1], [0]]), (20, [[3, 2], [1, 0]]), (25, [[3, 2, 1], [0]]), (1e9, [[3, 2, 1, 0]])],
)
def test_buckets_close_when_they_are_full(bucket: float, expected: list[list[int]]) -> None:
    assert predicted.bucketed([10, 10, 10, 10], bucket) == expected


def test_a_bucket_waits_for_its_gradients_and_for_the_link() -> None:
    line = predicted.timeline([1, 1], [2, 2], [20, 20], bucket_bytes=20, ranks=2, hardware=TOY)
    transfer = 2 * (1 + 20 / 2 / 10)  # a ring of two: two steps of half the bytes
    assert [(s.start, s.end) for s in line.of(0, COMM)] == [(4, 4 + transfer), (4 + transfer, 4 + 2 * transfer)]
    assert line.makespan == 4 + 2 * transfer
    assert line.overlap(0) == pytest.approx(2 / (2 * transfer))  # backward ends at 6


def test_one_rank_sends_nothing() -> None:
    assert predicted.timeline([1], [2], [20], 1, ranks=1, hardware=TOY).of(0, COMM) == []


def test_one_bucket_for_all_hides_nothing() -> None:
    assert predicted.timeline([1] * 4, [2] * 4, [20] * 4, 1e9, ranks=4, hardware=TOY).overlap(0) == 0

"""What each collective returns: the sum, on every rank, for any number of ranks, any size and any dtype."""

from itertools import product

import pytest
import torch

from minipar import collectives, comm
from minipar.collectives import segmented_ring

SIZES = (0, 1, 2, 3, 7, 64, 1001)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def own(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randint(0, 5, (size,), generator=torch.Generator().manual_seed(rank))
    return values > 2 if dtype == torch.bool else values.to(dtype)


def total(n: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    stacked = torch.stack([own(rank, size, dtype) for rank in range(n)])
    return stacked.any(0) if dtype == torch.bool else stacked.sum(0).to(dtype)


def combinations(full: bool) -> list[tuple[int, torch.dtype]]:
    """Every size in one dtype and every dtype in two sizes; or each size in each dtype."""
    if full:
        return list(product(SIZES, DTYPES))
    return list(dict.fromkeys([(size, DTYPES[0]) for size in SIZES] + list(product((7, 1001), DTYPES))))


def wrong_sums(full: bool) -> list[str]:
    axis, wrong = comm.world(), []
    for algorithm, (size, dtype) in product(collectives.ALL_REDUCE, combinations(full)):
        x = own(axis.rank, size, dtype)
        got = collectives.all_reduce(x, axis, algorithm)
        if not torch.equal(got, total(axis.size, size, dtype)) or not torch.equal(x, own(axis.rank, size, dtype)):
            wrong.append(f"{algorithm}: {size} x {dtype}")
    return wrong


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.full)], ids=["each", "all"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
def test_every_all_reduce_sums_any_size_and_dtype_on_every_rank(ranks, n, full):
    assert ranks(n).run(wrong_sums, full) == [[]] * n


def rounded_sums() -> dict[str, torch.Tensor]:
    x = torch.randn(3, 101, generator=torch.Generator().manual_seed(comm.world().rank))
    return {name: collectives.all_reduce(x, None, name) for name in collectives.ALL_REDUCE}


@pytest.mark.parametrize("n", [3, 4])
def test_all_ranks_hold_bitwise_the_same_rounded_sum(ranks, n):
    first, *others = ranks(n).run(rounded_sums)
    for name, sums in first.items():
        assert sums.shape == (3, 101)
        assert all(torch.equal(sums, other[name]) for other in others), name


def tiny_segments() -> torch.Tensor:
    x = torch.arange(103.0) * (comm.world().rank + 1)
    return segmented_ring.all_reduce_(x, None, segment_bytes=16)


@pytest.mark.parametrize("n", [2, 3])
def test_the_ring_may_be_cut_into_many_segments(ranks, n):
    expected = torch.arange(103.0) * (n * (n + 1) / 2)
    for got in ranks(n).run(tiny_segments):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def others() -> dict[str, bool]:
    axis = comm.world()
    n, rank = axis.size, axis.rank
    everyones = [torch.arange(14.0).view(7, 2) * 10**r for r in range(n)]
    own = everyones[rank]
    counts = [[(source + 2 * to) % 3 for to in range(n)] for source in range(n)]  # rows from source to to; zeros among them
    rows = torch.full((sum(counts[rank]), 2), float(rank))
    both_ways = counts[rank], [count[rank] for count in counts]
    return {
        "reduce_scatter": torch.equal(collectives.reduce_scatter(own), sum(everyones).tensor_split(n)[rank]),
        "all_gather": torch.equal(collectives.all_gather(own[:3]), torch.cat([x[:3] for x in everyones])),
        "all_to_all": torch.equal(collectives.all_to_all(rows, axis, *both_ways), comm.all_to_all(rows, axis, *both_ways)),
        "broadcast": all(torch.equal(collectives.broadcast(own, axis, src), everyones[src]) for src in range(n)),
    }


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_reduce_scatter_all_gather_all_to_all_and_broadcast(ranks, n):
    for right in ranks(n).run(others):
        assert all(right.values()), right


def test_a_tensor_that_autograd_needs_is_not_overwritten():
    with pytest.raises(ValueError, match="autograd"):
        collectives.all_reduce_(torch.ones(3, requires_grad=True))
    with pytest.raises(ValueError, match="contiguous"):
        collectives.all_reduce_(torch.ones(3, 2).T)


def test_an_unknown_algorithm_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="recursive doubling"):
        collectives.all_reduce(torch.ones(1), algorithm="butterfly")

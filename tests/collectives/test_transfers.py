"""Buffers and order: no buffer is touched while a transfer has it, and no order needs a backend that buffers messages."""

import pytest
import torch

from minipar import collectives, comm
from minipar.collectives import ring, segmented_ring
from tests.collectives.guard import TouchedError, guarded, stuck_ranks


def log_of(algorithm: str) -> list[tuple[list[int], list[int]]]:
    axis = comm.world()
    x = torch.arange(101.0) + axis.rank
    with guarded() as log:
        if algorithm == "tiny segments":
            got = segmented_ring.all_reduce_(x, axis, segment_bytes=40)
        else:
            got = collectives.all_reduce_(x, axis, algorithm)
    n = axis.size
    assert torch.equal(got, n * torch.arange(101.0) + n * (n - 1) / 2)
    return log


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_no_buffer_is_touched_in_flight_and_no_order_needs_buffering(ranks, n):
    pool = ranks(n)
    for algorithm in [*collectives.ALL_REDUCE, "tiny segments"]:
        assert stuck_ranks(pool.run(log_of, algorithm)) == [], algorithm


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("algorithm", ["segmented ring", "tiny segments"])
def test_the_segmented_ring_posts_each_receive_before_it_sends_the_same_message(ranks, n, algorithm):
    segments = 1 if algorithm == "segmented ring" else segmented_ring.segments_of(-(-101 // n) * 4, 40)
    for log in ranks(n).run(log_of, algorithm):
        launches = [i for i, entry in enumerate(log) if not isinstance(entry, int)]
        sent, posted = ([i for i in launches if log[i][side]] for side in (0, 1))
        assert len(sent) == len(posted) == 2 * (n - 1) * segments
        ahead = segmented_ring.ahead_of(n, segments, -(-101 // n) * 4)
        assert posted[ahead:] == sent[: len(sent) - ahead]  # with the send of the message before
    assert ahead == (n > 3 or (n == 3 and segments > 1))


def scratch_bytes(elements: int, segment_bytes: int) -> int:
    """Of all memory that messages arrive in, what is not the tensor's own."""
    x, arrived = torch.zeros(elements, dtype=torch.float64), {}
    real = comm.async_exchange

    def exchange(sends, recvs, axis):
        arrived.update({room.untyped_storage().data_ptr(): room.untyped_storage().nbytes() for room, _ in recvs})
        return real(sends, recvs, axis)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "async_exchange", exchange)
        segmented_ring.all_reduce_(x, None, segment_bytes)
    arrived.pop(x.untyped_storage().data_ptr(), None)
    return sum(arrived.values())


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_scratch_memory_of_the_segmented_ring_is_a_piece_and_a_segment(ranks, n):
    pool = ranks(n)
    for elements, segment_bytes in ((120, 2**20), (120, 8 * 6), (1009, 80), (n * 2**18, 2**21), (n * 2**18, 2**20)):
        piece = -(-elements // n)
        segments = segmented_ring.segments_of(piece * 8, segment_bytes)
        places = segments + segmented_ring.ahead_of(n, segments, piece * 8)
        assert pool.run(scratch_bytes, elements, segment_bytes) == [places * -(-piece // segments) * 8] * n


def adds_before_it_waits() -> None:
    axis = comm.world()
    x, arrived = torch.ones(4), torch.empty(4)
    pending = comm.async_exchange([(x, 1 - axis.rank)], [(arrived, 1 - axis.rank)], axis)
    x += arrived  # both mistakes in one line: x is still on its way, arrived has not come
    pending.wait()


def overwrites_what_it_sends() -> None:
    axis = comm.world()
    pieces = [torch.ones(4), torch.ones(4)]
    pending = comm.async_exchange([(pieces[1], 1 - axis.rank)], [(pieces[0], 1 - axis.rank)], axis)
    pieces[1].zero_()
    pending.wait()


def complaint(mistake) -> str:
    with guarded():
        try:
            mistake()
        except TouchedError as e:
            return str(e)
    return ""


@pytest.mark.parametrize("mistake", [adds_before_it_waits, overwrites_what_it_sends])
def test_the_guard_notices_a_buffer_that_is_reused_too_early(ranks, mistake):
    for said in ranks(2).run(complaint, mistake):
        assert "before it was sent" in said


def reads_too_early() -> bool:
    axis = comm.world()
    arrived = torch.zeros(4)
    pending = comm.async_exchange([(torch.ones(4), 1 - axis.rank)], [(arrived, 1 - axis.rank)], axis)
    early = arrived.clone()
    pending.wait()
    return bool(early.isnan().all()) and torch.equal(arrived, torch.ones(4))


def run_guarded(fn):
    with guarded():
        return fn()


def test_the_guard_poisons_what_is_read_too_early(ranks):
    assert ranks(2).run(run_guarded, reads_too_early) == [True, True]


def test_sending_all_round_before_receiving_is_found_out():
    send_first = [[([(rank + 1) % 3], []), 0, ([], [(rank - 1) % 3]), 2] for rank in range(3)]
    assert stuck_ranks(send_first) == [0, 1, 2]
    together = [[([(rank + 1) % 3], [(rank - 1) % 3]), 0] for rank in range(3)]
    assert stuck_ranks(together) == []
    receive_waits = [[([], [(rank - 1) % 3]), ([(rank + 1) % 3], []), 0, 1] for rank in range(3)]
    assert stuck_ranks(receive_waits) == []


def test_the_pieces_handed_to_reduce_scatter_are_not_the_callers(ranks):
    assert ranks(2).run(keeps_its_input) == [True, True]


def keeps_its_input() -> bool:
    x = torch.ones(5, 2)
    ring.reduce_scatter(x)
    ring.all_gather(x)
    return torch.equal(x, torch.ones(5, 2))

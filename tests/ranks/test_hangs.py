"""A hang is explained: who waits in which call on which line, who never came, what differs."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from course.ranks import RankError, RanksStuck
from minipar import comm, unwaited
from tests.ranks.moments import until

N = 4


@pytest.fixture
def pool(ranks, impatient):
    pool = ranks(N)
    yield pool
    assert pool.run(dist.get_rank) == list(range(N))


def _explanation(pool, function) -> str:
    with pytest.raises((RanksStuck, RankError)) as caught:
        pool.run(function, timeout=90)
    return str(caught.value)


def test_a_skipped_collective_with_the_usual_patience(pool, monkeypatch):
    monkeypatch.undo()

    def work():
        if dist.get_rank() != 2:
            dist.all_reduce(torch.ones(2))  # the others

    text = _explanation(pool, work)
    assert "ranks 0, 1 and 3 wait in all_reduce(float32[2], sum), line" in text
    assert "dist.all_reduce(torch.ones(2))  # the others" in text
    assert "rank 2 never came to call all_reduce: it has returned" in text


def test_a_skipped_collective_through_minipar(pool):
    def work():
        if dist.get_rank() != 2:
            comm.all_reduce(torch.ones(2))  # by comm

    text = _explanation(pool, work)
    assert "ranks 0, 1 and 3 wait in all_reduce(float32[2], sum), line" in text
    assert "comm.all_reduce(torch.ones(2))  # by comm" in text
    assert "rank 2 never came" in text


def test_a_skipped_broadcast_that_nobody_but_its_source_waits_for(pool):
    def work():
        if dist.get_rank() != 2:
            dist.broadcast(torch.ones(1), 0)

    assert "rank 2" in _explanation(pool, work)


def test_another_collective(pool):
    def work():
        x = torch.ones(4)
        if dist.get_rank() == 1:
            dist.broadcast(x, 0)
        else:
            dist.all_reduce(x)

    text = _explanation(pool, work)
    assert "the ranks disagree at call" in text
    assert "ranks 0, 2 and 3 called all_reduce(float32[4], sum), line" in text
    assert "rank 1 called broadcast(float32[4], from rank 0), line" in text


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (torch.ones(6), torch.ones(4), ("float32[6]", "float32[4]")),
        (torch.ones(4, dtype=torch.int32), torch.ones(4), ("int32[4]", "float32[4]")),
        (torch.ones(4, dtype=torch.float64), torch.ones(4), ("float64[4]", "float32[4]")),
    ],
    ids=["shape", "dtype of the same size", "dtype"],
)
@pytest.mark.parametrize("call", [dist.all_reduce, comm.all_reduce], ids=["torch", "minipar"])
def test_another_tensor(pool, ours, theirs, told, call):
    text = _explanation(pool, lambda: call((ours if dist.get_rank() == 3 else theirs).clone()))
    assert "the ranks disagree at call" in text
    assert f"rank 3 called all_reduce({told[0]}, sum)" in text
    assert f"ranks 0, 1 and 2 called all_reduce({told[1]}, sum)" in text


def test_another_source(pool):
    text = _explanation(pool, lambda: dist.broadcast(torch.ones(1), dist.get_rank() // 2))
    assert "broadcast(float32[1], from rank 0)" in text
    assert "broadcast(float32[1], from rank 1)" in text


def test_a_ring_of_receives(pool):
    def work():
        x = torch.ones(1)
        dist.recv(x, (dist.get_rank() + 1) % N)

    text = _explanation(pool, work)
    assert "rank 0 waits in recv(float32[1], from rank 1), line" in text
    assert "rank 1 has not come to send that message: it waits in recv itself" in text


def test_an_exchange_that_nobody_answers(pool):
    def work():
        if dist.get_rank() == 0:
            comm.recv(torch.ones(3), 1)

    text = _explanation(pool, work)
    assert "rank 0 waits in" in text
    assert "rank 1 never came to send that message: it has returned" in text


@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.parametrize("call", ["comm", "torch"])
def test_a_message_that_went_to_a_receive_that_nobody_waits_for(pool, call, waited):
    def work():
        if dist.get_rank() == 0:
            x = torch.ones(3)
            started = comm.async_exchange([], [(x, 1)]) if call == "comm" else dist.irecv(x, 1)  # before
            if waited:
                started.wait()
            del started
            comm.recv(x, 1)
        if dist.get_rank() == 1:
            comm.send(torch.ones(3), 0)

    text = _explanation(pool, work)
    assert "rank 0 waits in irecv(float32[3], from rank 1), line" in text
    assert "rank 1 never came to send that message" in text
    assert ("rank 0 has started 1 more irecv this way and not waited for it, line" in text) == (not waited)
    assert ("# before" in text) == (not waited)


def test_more_sends_that_nobody_waits_for_than_are_kept(pool):
    def work():
        if dist.get_rank() == 0:
            for _ in range(unwaited.MOST + 1):
                comm.async_exchange([(torch.ones(3), 1)])  # let go
        comm.barrier()

    text = _explanation(pool, work)
    assert "rank 0 waits in isend(float32[3], to rank 1), line" in text
    assert "rank 1 has not come to receive that message: it waits in all_reduce itself" in text
    assert f"rank 0 has started {unwaited.MOST - 1} more isend this way and not waited for them, line" in text
    assert "# let go" in text


def test_a_wait_for_a_message_of_the_wrong_size(pool):
    def work():
        if dist.get_rank() == 0:
            dist.send(torch.ones(2), 1)
        if dist.get_rank() == 1:
            dist.recv(torch.ones(5), 0)

    text = _explanation(pool, work)
    assert "float32[2]" in text
    assert "float32[5]" in text


def test_an_asynchronous_call_that_one_rank_left_out(pool):
    def work():
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(2), async_op=True).wait()

    assert "rank 1 never came to call all_reduce" in _explanation(pool, work)


def test_a_call_missing_in_a_smaller_group(pool):
    def work():
        pair = dist.new_group([1, 3])
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(2), group=pair)

    text = _explanation(pool, work)
    assert "rank 1 waits in all_reduce" in text
    assert "rank 3 never came" in text
    assert "rank 0 " not in text.split("never came")[0]


def test_a_group_that_one_rank_does_not_make(pool):
    def work():
        if dist.get_rank() != 0:
            dist.new_group([1, 2, 3])

    text = _explanation(pool, work)
    assert "new_group(ranks [1, 2, 3]), line" in text
    assert "rank 0 never came to call new_group" in text


def test_a_slow_rank_is_no_hang(pool):
    def work():
        if dist.get_rank() == 0:
            time.sleep(1)  # longer than two looks
        x = torch.ones(1)
        dist.all_reduce(x)
        return int(x)

    assert pool.run(work) == [N] * N


def test_a_slow_chain_of_messages_is_no_hang(pool):
    def work():
        me, x = dist.get_rank(), torch.zeros(1)
        if me:
            dist.recv(x, me - 1)
        time.sleep(0.3)
        x += 1
        if me < N - 1:
            dist.send(x, me + 1)
        dist.barrier()
        return int(x)

    assert pool.run(work) == [1, 2, 3, 4]


def test_receiving_from_anyone_is_no_hang(pool):
    def work():
        if dist.get_rank() == 0:
            x = torch.ones(1)
            return sorted(dist.recv(x) for _ in range(N - 1))
        time.sleep(0.8)
        dist.send(torch.ones(1), 0)

    assert pool.run(work)[0] == [1, 2, 3]


def test_states_tell_who_waits_where(pool):
    def work():
        if dist.get_rank() == 0:
            time.sleep(600)
        comm.barrier()

    run = pool.start(work)
    until(lambda: [s.op for s in pool.states()] == ["", "barrier", "barrier", "barrier"])
    until(lambda: pool.states()[0].state == "running")
    states = pool.states()
    run.stop()
    assert [s.state for s in states] == ["running", "waiting", "waiting", "waiting"]
    assert {s.op for s in states[1:]} == {"barrier"}
    assert states[1].axis == "world"
    assert states[1].where.function == "work"
    assert str(states[1]) == "rank 1 waiting in barrier over 'world'"

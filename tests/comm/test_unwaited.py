"""Calls that are started and that nobody waits for: what follows them arrives all the same."""

from __future__ import annotations

import builtins
import gc
import weakref

import pytest
import torch
import torch.distributed as dist

from minipar import comm, unwaited
from minipar.mesh import world

LARGE = 1_000_000  # elements; more than a socket takes at once


def start(whose: str, x: torch.Tensor) -> comm.Pending | dist.Work:
    """A message with ``x`` from rank 0 to rank 1."""
    sender = world().rank == 0
    if whose == "torch":
        return dist.isend(x, 1) if sender else dist.irecv(x, 0)
    return comm.async_exchange([(x, 1)], []) if sender else comm.async_exchange([], [(x, 0)])


def let_go_of(side: str, whose: str) -> float:
    """Rank 0 sends two messages, rank 1 receives them; what is started first on this ``side`` is let go before it can be over."""
    sender = world().rank == 0
    first, second = (torch.full((LARGE,), float(i)) if sender else torch.zeros(LARGE) for i in (1, 2))
    if sender == (side == "sent"):
        start(whose, first)
        comm.barrier()
        start(whose, second).wait()
    else:
        comm.barrier()
        start(whose, first).wait()
        start(whose, second).wait()
    comm.barrier()
    return second[-1].item()


@pytest.mark.parametrize("whose", ["minipar", "torch"])
@pytest.mark.parametrize("side", ["sent", "received"])
def test_a_message_that_nobody_waits_for_does_not_hold_up_the_next_one(ranks, side, whose):
    assert ranks(2).run(let_go_of, side, whose, timeout=90) == [2.0, 2.0]


def many_around() -> tuple[int, int, float]:
    """How many are kept after 1000 exchanges that nobody waited for, how many after one that somebody did; and what came."""
    axis = world()
    for i in range(1000):
        comm.async_exchange([(torch.full((10,), float(i)), 1 - axis.rank)], [(torch.empty(10), 1 - axis.rank)])
    before = len(unwaited.kept)
    last = torch.empty(10)
    comm.exchange([(torch.full((10,), 1000.0), 1 - axis.rank)], [(last, 1 - axis.rank)])
    gc.collect()
    return before, len(unwaited.kept), last[0].item()


def test_messages_that_are_over_are_not_kept(ranks):
    for before, after, last in ranks(2).run(many_around, timeout=90):
        assert before <= unwaited.MOST
        assert after == 0
        assert last == 1000


def let_go_and_return() -> int:
    other = 1 - world().rank
    comm.async_exchange([(torch.ones(LARGE), other)], [(torch.empty(LARGE), other)])
    return len(unwaited.kept)


def kept_and_exchanged() -> tuple[int, float]:
    other, kept = 1 - world().rank, len(unwaited.kept)
    return kept, comm.exchange([(torch.full((3,), 5.0), other)], [(torch.zeros(3), other)])[0][0].item()


def test_a_message_that_a_run_let_go_does_not_reach_the_next_one(ranks):
    pool = ranks(2)
    assert pool.run(let_go_and_return) == [1, 1]
    assert pool.run(kept_and_exchanged, timeout=90) == [(1, 5.0)] * 2


def let_go_of_what_nobody_receives() -> None:
    if world().rank == 0:
        comm.async_exchange([(torch.ones(3), 1)], [])


def test_a_message_of_a_process_group_that_is_given_up_is_not_kept(ranks):
    pool = ranks(2)
    pool.run(let_go_of_what_nobody_receives)  # so the ranks make a new group
    assert pool.run(kept_and_exchanged) == [(0, 5.0)] * 2


def remember_the_group_and_let_go() -> None:
    builtins.group_before = weakref.ref(dist.group.WORLD)
    let_go_of_what_nobody_receives()


def is_the_group_before_gone() -> bool:
    gc.collect()
    return builtins.group_before() is None


def test_a_process_group_that_is_given_up_is_not_held(ranks):
    """Nor are its sockets."""
    pool = ranks(2)
    pool.run(remember_the_group_and_let_go)
    assert pool.run(is_the_group_before_gone) == [True, True]


def every_collective_let_go() -> float:
    x = torch.ones(LARGE)
    for _ in range(3):
        comm.async_all_reduce_(x.clone())
        comm.async_all_gather(x)
        comm.async_reduce_scatter(x)
        comm.async_all_to_all(x)
    return comm.all_reduce(torch.ones(1)).item()


def test_collectives_that_nobody_waits_for_do_not_hold_up_the_next_one(ranks):
    assert ranks(2).run(every_collective_let_go, timeout=90) == [2.0, 2.0]


def let_go_while_under_way() -> bool:
    """Whether nothing of what rank 0 has let go lives on, while the call waits for rank 1."""
    gone, token = True, torch.ones(1)
    if world().rank == 0:
        gone = weakref.ref(comm.async_all_reduce_(torch.ones(3)))() is None
        comm.send(token, 1)
    else:
        comm.recv(token, 0)
        comm.all_reduce_(torch.ones(3))
    comm.barrier()
    return gone


def test_a_collective_under_way_does_not_hold_its_process_group(ranks):
    """Else the group ends in the thread of its own that ends the call, which cannot wait for itself: the process aborts."""
    assert ranks(2).run(let_go_while_under_way, timeout=90) == [True, True]


def test_a_message_is_waited_for_by_one_thread_only(monkeypatch):
    """gloo tells the end of a message to one who waits, and lets others wait for ever."""
    waits = []

    class Work:
        def wait(self) -> None:
            waits.append(self)
            unwaited.passed(1, ways)  # as another thread does meanwhile

    ways = frozenset(["to rank 1"])
    monkeypatch.setattr(unwaited, "kept", [unwaited.Kept(0, ways, [Work()])])
    unwaited.passed(1, ways)
    assert len(waits) == 1
    assert unwaited.kept == []

"""Starting ranks, and getting back to idle ranks whatever happened: stop, kill, fork again, join again.

A rank whose Python code could be interrupted keeps its variables. A rank that sits in a blocked communication call, or does not
react, is killed and forked again. The process group is always made anew, since half-delivered messages would spoil the next run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from course.ranks import errors, strays, watchdog, wire
from course.ranks.member import Member
from course.ranks.turns import LOOK, Turns
from minipar.trace import now

if TYPE_CHECKING:
    from course.ranks.errors import Trouble
    from course.ranks.pool import Pool
    from course.ranks.run import Run
    from course.ranks.slots import RankState

START_LIMIT = 60.0  # seconds for ranks to join, on a machine that is busy with other things
SETTLE = 0.15  # seconds in which the first cause may still come after its consequence
MEET_LIMIT = 1.5  # seconds for the other ranks to come to the call in which one failed: what they call there tells why
DEATH_LIMIT = 10.0  # seconds until a rank that ends is known to be dead
ANSWER_LIMIT = 2.0  # seconds for the guard threads to answer; only one that cannot run takes so long
BLOCKED_LIMIT = 0.3  # seconds a rank may still wait in a communication call after it was interrupted
NEIGHBOUR_LIMIT = 0.1  # the same, where it is known already that the call cannot end
BUSY_LIMIT = 1.0  # seconds Python code may take to end after it was interrupted, the waits for a processor left out
LEAVE_LIMIT = 0.7  # seconds to give up a process group, likewise


def start(pool: Pool, ranks: Iterable[int]) -> None:
    """Fork ``ranks`` and have all of the pool join a new process group. Blocks until they are ready."""
    if pool.hub.is_current_thread:
        raise RuntimeError("a subscriber cannot start ranks: hand the work to another thread and return")
    fresh = {rank: Member(pool, rank) for rank in ranks}
    try:
        pids = pool.server.fork([m.fds for m in fresh.values()])
    except BaseException:
        for m in fresh.values():
            m.close_theirs()
            pool.hub.post(m.close)
        raise
    for m, pid in zip(fresh.values(), pids, strict=True):
        m.forked(pid)
    with pool.lock:
        keep = {m.rank: m for m in pool.members}
        pool.members = [fresh.get(rank) or keep[rank] for rank in range(pool.size)]
    strays.record_ranks(pool.name, [m.pid for m in pool.members])
    if pool.closed:
        pool.kill(pool.members)
        raise RuntimeError("the ranks were closed while they started")
    _join(pool)


def _join(pool: Pool) -> None:
    pool.drop_store()  # of the group that was
    store = pool.new_store()
    hardware = bytes(wire.dumps(pool.hardware)) if pool.hardware is not None else b""
    pool.left_over = []
    for m in pool.members:
        m.state, m.failure, m.tally = "starting", None, ()
        m.messages.send(wire.JOIN, pool.join_order(m.rank, store), hardware)
    _await(pool, lambda: all(m.state == "ready" for m in pool.members) or any(not m.alive for m in pool.members), START_LIMIT)
    failed = next((m.failure for m in pool.members if m.failure is not None), None)
    if failed is not None:
        raise RuntimeError(f"rank {failed.rank} could not join: {failed.message}")
    late = [m.rank for m in pool.members if m.state != "ready"]
    if late:
        raise RuntimeError(f"{errors.these_ranks(late)} did not start. {''.join(pool.noise)[-1500:]}".strip())


def revive(pool: Pool, dead: list[Member]) -> str:
    """Fork ranks that died between two runs; what to tell the learner. Blocks."""
    told = ", ".join(f"rank {m.rank} {errors.ending(m.status)}" for m in dead if not m.alive)
    rebuild(pool)
    if not told:  # they live, but an interrupt has left them without a group
        return "an interrupt came while ranks were started again; this was done anew"
    return f"{told} between two runs; started again, its variables are gone"


def recover(pool: Pool, run: Run, trouble: Trouble) -> None:
    """In a thread of its own: bring every rank back to idle, then end ``run`` with the error that tells what happened."""
    error: BaseException | None = None
    lost: list[int] = []
    try:
        if trouble.kind == "failed":
            _settle(pool)
        scene = watchdog.Scene.of(pool, _ask(pool))
        quiesce(pool, NEIGHBOUR_LIMIT if trouble.kind in ("failed", "died", "stuck") else BLOCKED_LIMIT)
        lost = rebuild(pool)
        error = errors.explain(run, trouble, scene, lost)
    except Exception as broken:
        error = RuntimeError(f"the ranks could not be restarted ({broken}); make new ones: ranks = Ranks({pool.size})")
        error.__cause__ = broken
    how = {"stopped": "stopped", "interrupted": "stopped", "left": "returned"}.get(trouble.kind, "failed")

    def finish() -> None:
        with pool.lock:
            pool.run = None if pool.run is run else pool.run
            pool.busy_until_recovered = False
        run.finish(error, how)

    pool.hub.post(lambda: pool.hub.later(finish))
    if error is not None and error.__cause__ is not None:
        pool.close(wait=False)


def _await(pool: Pool, condition: Callable[[], bool], seconds: float) -> bool:
    with pool.lock:
        return pool.changed.wait_for(lambda: pool.closed or condition(), seconds)


def _settle(pool: Pool) -> None:
    """A dead rank breaks its neighbours' calls, and their errors may arrive before the news of its death."""

    def clear() -> bool:
        return all(m.finished or not m.alive for m in pool.members)

    def ending() -> bool:
        return any(m.messages.closed for m in pool.members)

    _await(pool, clear, SETTLE)
    if any(m.failure is not None and not m.failure.in_call for m in pool.members):
        return
    _look_out(pool, ending, SETTLE)
    if not ending():
        _look_out(pool, lambda: ending() or all(_has_come(m, pool) for m in pool.members), MEET_LIMIT)
    _await(pool, lambda: not any(m.alive and m.messages.closed for m in pool.members), DEATH_LIMIT)


def _has_come(m: Member, pool: Pool) -> bool:
    return m.finished or not m.alive or pool.slots.read(m.rank).state == "waiting"


def _look_out(pool: Pool, condition: Callable[[], bool], seconds: float) -> None:
    """Wait for something that nobody announces."""
    deadline = now() + seconds
    while not condition() and not pool.closed and now() < deadline:
        time.sleep(0.01)


def _ask(pool: Pool) -> dict[int, dict[str, Any]]:
    number = pool.ask()
    living = sum(m.alive for m in pool.members)
    _await(pool, lambda: len(pool.answers(number)) >= living, ANSWER_LIMIT)
    return pool.answers(number)


def quiesce(pool: Pool, blocked_limit: float) -> None:
    """Interrupt every rank that still runs; kill those that wait in a communication call or do not react."""
    began, turns = now(), Turns()
    while pending := [m for m in pool.members if m.alive and not m.finished and not m.killed]:
        passed = now() - began
        states = {s.rank: s for s in pool.states()}
        doomed = [m for m in pending if _hopeless(states[m.rank], passed, blocked_limit) or turns.over(m.pid, BUSY_LIMIT)]
        if doomed:
            pool.kill(doomed)
        pool.server.signal([m.pid for m in pending if m not in doomed], signal.SIGINT)  # again: a destructor may swallow one
        _await(pool, lambda: all(m.finished or not m.alive for m in pool.members), LOOK)
        if pool.closed:
            return
        for m in pending:
            turns.look(m.pid)
    _await(pool, lambda: all(not m.alive for m in pool.members if m.killed), DEATH_LIMIT)
    pool.server.await_delivery(DEATH_LIMIT)


def _hopeless(state: RankState, passed: float, blocked_limit: float) -> bool:
    return state.state == "waiting" and min(passed, state.seconds) > blocked_limit


def rebuild(pool: Pool) -> list[int]:
    """Give the living ranks a new process group, together with a new process for each dead one. Returns the ranks forked."""
    _leave_group(pool, [m for m in pool.members if m.alive])
    lost = [m.rank for m in pool.members if not m.alive]
    if not pool.server.alive:
        pool.adopt_server()
    for attempt in range(2):
        try:
            start(pool, lost)
            return lost
        except RuntimeError:
            if attempt or pool.closed:
                raise
            pool.kill([m for m in pool.members if m.alive])  # begin again with fresh processes all round
            _await(pool, lambda: all(not m.alive for m in pool.members), DEATH_LIMIT)
            time.sleep(0.05)
            lost = list(range(pool.size))
    return lost


def _leave_group(pool: Pool, survivors: list[Member]) -> None:
    """Have them give up the process group; kill those that cannot, since an asynchronous call that never ends holds it."""
    for m in survivors:
        m.messages.send(wire.LEAVE, None)
    turns, deadline = Turns(), now() + 2 * DEATH_LIMIT
    while not _await(pool, lambda: all(m.state == "left" or not m.alive for m in survivors), LOOK) and now() < deadline:
        pending = [m for m in survivors if m.alive and m.state != "left"]
        for m in pending:
            turns.look(m.pid)
        pool.kill([m for m in pending if turns.over(m.pid, LEAVE_LIMIT)])

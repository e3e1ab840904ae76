"""Where the time of a rank goes: the timeline's work, communication and idle time are those that the rank itself clocked."""

import time

import torch

from minipar import comm
from minipar.trace import now, tracer

PAUSES = (0.4, 0.6, 0.5)


def clocked() -> dict[str, float]:
    """Rounds of work, a transfer hidden behind work, one that is not, and a pause; each clocked here as well."""
    rank = comm.world().rank
    x, hidden, plain = torch.ones(300, 300), torch.ones(2_000_000), torch.ones(2_000_000)
    comm.barrier()
    own = {"work": 0.0, "communication": 0.0, "idle": 0.0}
    began = mark = now()

    def book(what: str) -> None:
        nonlocal mark
        own[what] += now() - mark
        mark = now()

    for pause in PAUSES:
        pending = comm.async_all_reduce_(hidden)
        with tracer.span("F"):
            while now() - mark < 0.05 * (1 + rank):
                x = torch.tanh(x @ x)
        book("work")
        pending.wait()
        comm.all_reduce_(plain)
        book("communication")
        time.sleep(pause)
        book("idle")
    comm.all_reduce_(plain)
    book("communication")
    return {**own, "wall": now() - began, "began": began}


def test_work_and_communication_and_idle_time_add_up_to_the_wall_time(ranks):
    pool = ranks(2)
    books = pool.run(clocked)
    timeline = pool.last_run.timeline
    for rank, own in enumerate(books):
        timeline_of_loop = type(timeline)([s for s in timeline.spans if s.start >= own["began"]], 2)
        got = timeline_of_loop.breakdown(rank, own["wall"])
        assert got.work + got.communication + got.idle == own["wall"]
        for what in ("work", "communication", "idle"):
            assert abs(getattr(got, what) - own[what]) <= 0.02 * own["wall"], (what, got, own)
        assert got.idle >= sum(PAUSES) - 0.02 * own["wall"]

"""Where the time of a rank goes: the timeline's work, communication and idle time are those that the rank itself clocked."""

import time

import pytest
import torch

from minipar import comm
from minipar.trace import now, tracer

PAUSES = (0.4, 0.6, 0.5)


def clocked() -> list[dict[str, float]]:
    """Rounds of work, a transfer hidden behind work, one that is not, and a pause; each clocked here as well."""
    rank = comm.world().rank
    x, hidden, plain = torch.ones(300, 300), torch.ones(2_000_000), torch.ones(2_000_000)
    comm.barrier()
    rounds = []
    for pause in PAUSES:
        began = mark = now()
        own = {}
        pending = comm.async_all_reduce_(hidden)
        with tracer.span("F"):
            while now() - mark < 0.05 * (1 + rank):
                x = torch.tanh(x @ x)
        own["work"], mark = now() - mark, now()
        pending.wait()
        comm.all_reduce_(plain)
        own["communication"], mark = now() - mark, now()
        time.sleep(pause)
        own["idle"] = now() - mark
        rounds.append({**own, "began": began, "wall": now() - began})
        comm.barrier()
    return rounds


def test_work_and_communication_and_idle_time_add_up_to_the_wall_time(ranks):
    """A machine that stops between a call and its clock puts one round out; a timeline that counts wrongly puts out all."""
    pool = ranks(2)
    books = pool.run(clocked)
    timeline = pool.last_run.timeline
    for rank, rounds in enumerate(books):
        out = {"work": [], "communication": [], "idle": []}
        for own in rounds:
            inside = [s for s in timeline.spans if own["began"] <= s.start < own["began"] + own["wall"]]
            got = type(timeline)(inside, 2).breakdown(rank, own["wall"])
            assert got.work + got.communication + got.idle == pytest.approx(own["wall"], rel=1e-12)
            for what, errors in out.items():
                errors.append(abs(getattr(got, what) - own[what]) / own["wall"])
        assert {what: min(errors) <= 0.02 for what, errors in out.items()} == dict.fromkeys(out, True), out

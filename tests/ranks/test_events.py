"""Spans, prints and emitted events reach the kernel in order and without loss."""

from __future__ import annotations

import os
import sys
import threading
import time
from enum import StrEnum
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import course.ranks.hub
from course import Ranks
from course.ranks import RankError, emit
from course.ranks.hub import Pipe
from course.ranks.run import Echo, Event
from minipar import comm, pacing
from minipar.trace import COMM, COMPUTE, tracer
from tests.ranks.moments import LIMIT, until


def _many(count):
    for i in range(count):
        tracer.add(f"s{i}", COMPUTE, i, i + 1)


def test_no_span_is_lost_and_each_rank_is_in_order(ranks):
    pool = ranks(4)
    pool.run(_many, 20_000)
    timeline = pool.last_run.timeline
    for rank in range(4):
        names = [s.name for e in pool.last_run.events("spans") if e.rank == rank for s in e.payload]
        assert names == [f"s{i}" for i in range(20_000)]
    assert (timeline.ranks, timeline.source) == (4, "measured")


def test_events_come_while_the_ranks_work(ranks):
    seen = []

    def work():
        for step in range(3):
            emit("loss", {"step": step})
        time.sleep(600)

    run = ranks(2).start(work)
    run.subscribe(lambda events: seen.extend(e for e in events if e.kind == "loss"))
    until(lambda: len(seen) == 6)
    assert not run.done
    run.stop()
    for rank in range(2):
        assert [e.payload["step"] for e in seen if e.rank == rank] == [0, 1, 2]


def test_a_late_subscriber_gets_everything_once(ranks):
    def work():
        for i in range(100):
            emit("n", i)

    pool = ranks(2)
    pool.run(work)
    seen, ended = [], threading.Event()

    def watch(events):
        seen.extend(events)
        ended.set()

    pool.last_run.subscribe(watch)
    assert ended.wait(LIMIT)
    assert seen == pool.last_run.events()
    assert [e.payload for e in seen if e.kind == "n" and e.rank == 1] == list(range(100))
    assert seen[-1].kind == "end"


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_subscriber_that_fails_does_not_stop_the_run(ranks, capsys, error):
    def fail(events):
        raise error

    def work():
        for _ in range(5):
            emit("x", 1)
            time.sleep(0.05)
        return "done"

    run = ranks(2).start(work)
    run.subscribe(fail)
    assert run.result() == ["done"] * 2


def test_a_subscriber_that_makes_ranks_is_refused(ranks):
    refused = []

    def make(events):
        with pytest.raises(RuntimeError, match="hand the work to another thread") as caught:
            Ranks(1)
        refused.append(caught.value)

    run = ranks(2).start(int)
    run.subscribe(make)
    assert run.result() == [0, 0]
    until(lambda: refused)


def test_who_prints_without_end_lets_the_reader_go_on(monkeypatch):
    mine, theirs = os.pipe()
    got: list[bytes] = []
    pipe = Pipe(SimpleNamespace(post=lambda work: None), mine, got.append)
    monkeypatch.setattr(course.ranks.hub.os, "read", lambda fd, size: b"y\n" if len(got) < 1000 else b"")
    pipe.drain()
    monkeypatch.undo()
    os.close(mine)
    os.close(theirs)
    assert 0 < len(got) < 1000


class Kind(StrEnum):
    LOSS = "loss"


def test_the_kind_of_an_event_is_a_string_and_arrives_as_a_plain_one(ranks):
    pool = ranks(2)
    pool.run(lambda: emit(Kind.LOSS, 1))
    assert [type(e.kind) for e in pool.last_run.events("loss")] == [str] * 2
    with pytest.raises(RankError, match="the kind of an event is a string"):
        pool.run(lambda: emit(None, 1))


def test_prints_are_tagged_by_rank_and_whole(ranks, capsys):
    def work():
        print("one", dist.get_rank())
        print("two", "parts", end="")
        print("!", file=sys.stderr)

    ranks(2).run(work)
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[rank 0] one 0", "[rank 0] two parts", "[rank 1] one 1", "[rank 1] two parts"]
    assert sorted(err.splitlines()) == ["[rank 0] !", "[rank 1] !"]


def test_any_bytes_may_be_printed(ranks, capsys):
    def work():
        os.write(1, b"\xff\xfe raw \x00\n")
        sys.stdout.buffer.write(b"caf\xc3")
        sys.stdout.buffer.flush()
        sys.stdout.buffer.write(b"\xa9\n")
        print("\ud800 lone, \u2603 snow")
        os.system("echo from a child")

    ranks(1).run(work)
    out = capsys.readouterr().out
    assert "\\xff\\xfe raw \x00" in out
    assert "café" in out
    assert "☃ snow" in out
    assert "from a child" in out


def test_prints_of_c_code_are_there_at_the_end(ranks, capsys):
    def work():
        import ctypes

        ctypes.CDLL(None).printf(b"from C\n")

    ranks(1).run(work)
    assert "[rank 0] from C" in capsys.readouterr().out


def test_a_flood_of_prints_arrives_whole(ranks, capsys):
    def work():
        for i in range(20_000):
            print(i, "x" * 50)

    ranks(2).run(work)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(2):
        mine = [int(line.split()[2]) for line in lines if line.startswith(f"[rank {rank}]")]
        assert mine == list(range(20_000))


def test_prints_stream_while_the_ranks_work(ranks):
    def work():
        print("early")
        print("no newline", end="")
        time.sleep(600)

    run = ranks(1).start(work)
    printed = lambda: "".join(e.payload[1] for e in run.events("print"))  # noqa: E731
    until(lambda: printed() == "early\nno newline")
    assert not run.done
    run.stop()


def test_calls_of_torch_are_traced_like_those_of_minipar(ranks):
    def work():
        x = torch.ones(100)  # 400 bytes
        dist.all_reduce(x)
        comm.all_reduce(x)
        dist.broadcast(x, 0)
        if dist.get_rank() == 0:
            dist.isend(x, 1).wait()
        if dist.get_rank() == 1:
            dist.irecv(x, 0).wait()

    pool = ranks(4)
    pool.run(work)
    spans = pool.last_run.timeline.of(0, COMM)
    told = [(s.name, s.axis, s.nbytes, s.peers) for s in spans]
    assert told == [
        ("all_reduce", "world", 600, (1, 2, 3)),
        ("all_reduce", "world", 600, (1, 2, 3)),
        ("broadcast", "world", 300, (1, 2, 3)),
        ("send", "", 400, (1,)),
    ]
    assert [s.name for s in pool.last_run.timeline.of(1, COMM)][-1] == "recv"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_computation_leaves_out_the_call_that_interrupts_it(ranks, asynchronous):
    def work():
        x = torch.ones(1)
        with tracer.span("step"):
            time.sleep(0.02 * dist.get_rank())
            work = dist.all_reduce(x, async_op=asynchronous)
            if work is not None:
                work.wait()

    pool = ranks(2)
    pool.run(work)
    for rank in range(2):
        compute, calls = (pool.last_run.timeline.of(rank, lane) for lane in (COMPUTE, COMM))
        assert [s.name for s in compute] == ["step", "step"]
        assert compute[0].end <= calls[0].end <= compute[1].start + 1e-9


def test_a_message_nobody_received_is_noted_and_does_not_reach_the_next_run(ranks, capsys):
    def post():
        if dist.get_rank() == 0:
            dist.isend(torch.tensor([1.0]), 1)

    def exchange():
        x = torch.tensor([2.0])
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        return x.item()

    pool = ranks(2)
    pool.run(post)
    assert "rank 0 sent 1 message to rank 1 that it never received" in capsys.readouterr().err
    assert pool.run(exchange) == [2.0, 2.0]


def test_paced_ranks_say_so():
    from course import Ranks

    with Ranks(2, hardware="laptop-wifi") as pool:
        pool.run(lambda: comm.all_reduce(torch.ones(250_000)))
        timeline = pool.last_run.timeline
        assert timeline.source == "paced"
        assert pool.describe() == "paced as laptop-wifi"
    # 1 MB in 2 steps of half of it, each 2 ms + bytes / (50 MB/s)
    for rank in range(2):
        assert timeline.of(rank, COMM)[0].seconds == pytest.approx(2 * (2e-3 + 0.5e6 / 0.05e9), rel=1e-6)


def _seconds_until_the_link_is_free(x: torch.Tensor) -> float:
    """And then start a message that nobody waits for."""
    pacer, other = pacing.current(), 1 - comm.world().rank
    free = pacer.ready((0, 1)) - pacer.clock()
    comm.async_exchange([(x, other)], [(torch.empty_like(x), other)])
    return free


def test_what_a_paced_run_left_on_its_links_does_not_hold_up_the_next_one():
    from course import Ranks

    with Ranks(2, hardware="laptop-wifi") as pool:
        for _ in range(2):
            assert max(pool.run(_seconds_until_the_link_is_free, torch.ones(2_500_000))) <= 0  # 10 MB: 0.2 s on Wi-Fi


def _paced_by_the_learner(hardware: str | None) -> None:
    comm.pace(hardware, comm.world().rank)


def _pace() -> str | None:
    pacer = pacing.current()
    return None if pacer is None else pacer.cluster.name


def test_the_pace_that_a_run_sets_ends_with_it(ranks):
    """The label of a run is that of its ranks."""
    pool = ranks(2)
    pool.run(_paced_by_the_learner, "laptop-wifi")
    assert pool.run(_pace) == [None, None]
    pool.run_cell("from minipar import comm; comm.pace('laptop-wifi', rank)")
    assert pool.run(_pace) == [None, None]


def test_ranks_that_a_run_has_unpaced_are_paced_in_the_next_one():
    from course import Ranks

    with Ranks(2, hardware="laptop-wifi") as pool:
        pool.run(_paced_by_the_learner, None)
        assert pool.run(_pace) == ["laptop-wifi"] * 2


def test_a_line_that_comes_in_pieces_is_printed_whole_and_once():
    echo = Echo()
    for text in ("one ", "li", "ne\nanother", " 10 %\r", "another 20 %", "\nno end", " yet"):
        echo.feed([Event("print", 1, 0.0, ("stdout", text)), Event("print", 0, 0.0, ("stdout", "y"))])
    assert echo.take() == [("stdout", "[rank 1] one line\n"), ("stdout", "[rank 1] another 20 %\n")]
    echo.finish()
    assert sorted(echo.take()) == [("stdout", "[rank 0] yyyyyyy\n"), ("stdout", "[rank 1] no end yet\n")]

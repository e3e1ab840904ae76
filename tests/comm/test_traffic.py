"""What a call puts on the wire, whom it concerns and when: the spans, and what the monitor hears."""

import time

import pytest
import torch

from minipar import Mesh, comm
from minipar.comm import twins
from minipar.mesh import world
from minipar.trace import Span, now, tracer

ROWS, WIDTH = 12, 4
FULL = ROWS * WIDTH * 8  # bytes of the float64 tensor handed in


def spans_of(call, *args) -> list[Span]:
    with tracer.watch() as spans:
        call(*args)
    return spans


def traffic() -> dict[str, tuple[float, tuple[int, ...]]]:
    axis, x = world(), torch.ones(ROWS, WIDTH, dtype=torch.float64)
    calls = {
        "all_reduce": lambda: comm.all_reduce(x, axis),
        "all_gather": lambda: comm.all_gather(x, axis, 1),
        "reduce_scatter": lambda: comm.reduce_scatter(x, axis),
        "all_to_all": lambda: comm.all_to_all(x, axis),
        "broadcast": lambda: comm.broadcast(x, axis),
        "barrier": lambda: comm.barrier(axis),
    }
    seen = {}
    for name, call in calls.items():
        (span,) = spans_of(call)
        assert (span.name, span.lane, span.axis, span.rank) == (name, "comm", "world", axis.rank)
        assert span.end >= span.start
        seen[name] = (span.nbytes, span.peers)
    return seen


@pytest.mark.parametrize("n", [2, 3, 4])
def test_bytes_follow_their_closed_forms(ranks, n):
    for rank, seen in enumerate(ranks(n).run(traffic)):
        others = tuple(r for r in range(n) if r != rank)
        assert {name: peers for name, (_, peers) in seen.items()} == dict.fromkeys(seen, others)
        assert {name: nbytes for name, (nbytes, _) in seen.items()} == pytest.approx(
            {
                "all_reduce": 2 * (n - 1) / n * FULL,
                "all_gather": (n - 1) / n * (n * FULL),  # the full buffer is the output
                "reduce_scatter": (n - 1) / n * FULL,
                "all_to_all": (n - 1) / n * FULL,
                "broadcast": (n - 1) / n * FULL,
                "barrier": 0,
            }
        )


def messages() -> list[tuple[str, float, tuple[int, ...]]]:
    axis, x = world(), torch.ones(5, dtype=torch.float32)
    to, source = (axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size
    return [(s.name, s.nbytes, s.peers) for s in spans_of(comm.exchange, [(x, to)], [(torch.empty(5), source)], axis)]


def test_an_exchange_counts_what_leaves_and_names_its_peer(ranks):
    for rank, seen in enumerate(ranks(3).run(messages)):
        assert seen == [("send", 20, ((rank + 1) % 3,)), ("recv", 0, ((rank - 1) % 3,))]


def uneven_bytes() -> float:
    axis = world()
    counts = [[1, 3], [2, 2]][axis.rank]
    (span,) = spans_of(comm.all_to_all, torch.ones(4, 2), axis, counts, [[1, 2], [3, 2]][axis.rank])
    return span.nbytes


def test_an_uneven_all_to_all_counts_only_the_rows_that_leave(ranks):
    assert ranks(2).run(uneven_bytes) == [3 * 2 * 4, 2 * 2 * 4]


def every_call_alone() -> None:
    x, axis = torch.ones(4, 2, requires_grad=True), Mesh()["tp"]
    y = x
    for twin in (twins.copy, twins.reduce, twins.gather, twins.split, twins.gather_for_sharded, twins.reduce_scatter):
        y = twin(y, axis)
    y = twins.broadcast(twins.all_to_all(y, axis), axis)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(4, 2))
    comm.all_reduce(x, axis), comm.all_gather(x, axis), comm.reduce_scatter(x, axis), comm.all_to_all(x, axis), comm.barrier(axis)


def alone() -> list[Span]:
    return spans_of(every_call_alone)


def test_an_axis_of_one_sends_nothing_forward_or_backward(ranks):
    assert alone() == []  # no process group at all
    assert ranks(1).run(alone) == [[]]


def phases() -> list[tuple[str, str]]:
    axis = world()
    x = torch.ones(2, requires_grad=True)
    with tracer.watch() as spans:
        with tracer.during("forward"):
            y = twins.reduce(twins.copy(x, axis), axis)
        with tracer.during("backward"):
            y.sum().backward()
    return [(s.name, s.phase) for s in spans]


def test_calls_carry_the_phase_they_were_made_in(ranks):
    assert ranks(2).run(phases) == [[("all_reduce", "forward"), ("all_reduce", "backward")]] * 2


def waited_for_late() -> bool:
    pending = comm.async_all_reduce_(torch.ones(ROWS), world())
    while not pending.done():
        time.sleep(0.001)
    over = now()
    with tracer.watch() as spans:
        pending.wait()
    return spans[0].start < spans[0].end < over


def test_a_transfer_that_ended_before_it_was_waited_for_ends_then_in_the_trace(ranks):
    for _ in range(2):  # the first time gloo's thread is new to Python
        assert ranks(2).run(waited_for_late) == [True, True]


class Recorder:
    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def enter(self, *call) -> None:
        self.heard.append(call)

    def leave(self) -> None:
        self.heard.append(("leave",))


def monitored() -> list[tuple]:
    recorder, axis = Recorder(), Mesh(tp=2)["tp"]
    before = comm.set_monitor(recorder)
    try:
        comm.all_reduce(torch.ones(4, 8), axis)
        comm.all_gather(torch.ones(3, dtype=torch.bfloat16), world())
    finally:
        comm.set_monitor(before)
    comm.barrier()
    return recorder.heard


def test_the_monitor_hears_call_axis_members_type_and_shape(ranks):
    expected = [
        ("all_reduce", "tp", (0, 1), "float32[4, 8]"),
        ("leave",),
        ("all_gather", "world", (0, 1), "bfloat16[3]"),
        ("leave",),
    ]
    assert ranks(2).run(monitored) == [expected] * 2

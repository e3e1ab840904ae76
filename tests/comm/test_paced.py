"""Paced calls carry the same values, say the same bytes, and last as long as the model says."""

from __future__ import annotations

import time

import pytest
import torch

from minipar import comm
from minipar.collectives import ALL_REDUCE, costs
from minipar.hardware import PRESETS, Cluster, Link
from minipar.model_time import model_time
from minipar.trace import Span, Timeline, tracer

LINK = Link("slow", latency=1e-3, bandwidth=20e6)
HARDWARE = Cluster("slow", PRESETS["cpu"].device, LINK, LINK, ranks_per_node=1)
DTYPES = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex128)


def passed_on(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[bool, list[Span]]:
    """Whether what came is what the rank to the left holds."""
    axis = comm.world()
    values = [torch.arange(r, r + torch.Size(shape).numel()).remainder(5).to(dtype).view(shape) for r in range(axis.size)]
    got = torch.zeros(shape, dtype=dtype)
    left, right = (axis.rank - 1) % axis.size, (axis.rank + 1) % axis.size
    comm.pace(PRESETS["cpu"], axis.rank)
    with tracer.watch() as spans:
        comm.exchange([(values[axis.rank], right), (values[axis.rank], right)], [(torch.zeros_like(got), left), (got, left)], axis)
    comm.pace(None)
    return torch.equal(got, values[left]), spans


@pytest.mark.parametrize("shape", [(3, 5), (), (0,)])
def test_paced_messages_of_every_type_arrive_and_count_their_own_bytes_only(ranks, shape):
    for dtype in DTYPES:
        for right, spans in ranks(3).run(passed_on, dtype, shape):
            nbytes = torch.zeros(shape, dtype=dtype).nbytes
            assert right
            assert [(s.name, s.nbytes) for s in spans] == [("send", nbytes)] * 2 + [("recv", 0)] * 2


def reduced(algorithm: str, elements: int) -> tuple[list[Span], float]:
    x = torch.ones(elements)
    comm.barrier()
    with model_time(HARDWARE, comm.world().rank), tracer.watch() as spans:
        ALL_REDUCE[algorithm](x)
    return spans, x.sum().item()


@pytest.mark.parametrize("algorithm", ALL_REDUCE)
def test_on_the_paced_clock_a_collective_by_hand_takes_what_theory_says(ranks, algorithm):
    spans, sums = zip(*ranks(3).run(reduced, algorithm, 3000), strict=True)
    assert sums == (9000.0,) * 3
    makespan = Timeline([s for own in spans for s in own], 3).makespan
    assert makespan == pytest.approx(costs.predict(algorithm, 3, 3000, HARDWARE).makespan)


def one_stops(seconds: float) -> list[Span]:
    axis = comm.world()
    comm.pace(HARDWARE, axis.rank)
    with tracer.watch() as spans:
        comm.barrier()
        if axis.rank == 1:
            time.sleep(seconds)
        comm.all_reduce(torch.ones(2))
        comm.exchange([(torch.ones(2), (axis.rank + 1) % 3)], [(torch.zeros(2), (axis.rank - 1) % 3)])
    comm.pace(None)
    return spans


def test_a_rank_that_stops_shows_on_the_paced_clock_of_all(ranks):
    for barrier, together, sent, received in ranks(3).run(one_stops, 0.3):
        assert together.start - barrier.end > 0.29
        assert min(sent.start, received.start) >= together.end

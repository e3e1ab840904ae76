"""The end of a predicted step: gradients summed over their axes, and the loss; who comes first waits for who comes last."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from minipar.hardware import Cluster, Link
from minipar.planner.holdings import tied_elements
from minipar.planner.job import Job, Place
from minipar.planner.recipe import Op
from minipar.planner.traffic import closing, on_the_wire
from minipar.trace import COMM, Span

Gradients = Sequence[tuple[str, float, float, float]]  # axis, bytes, when they were there, when the link was free


def close(job: Job, where: Cluster, ends: dict[Place, float], spans: list[Span]) -> None:
    """From ``ends``, when each rank is done with its row, on to the end of the step. Adds to ``spans``."""
    waiting = {place: deque(closing(job, place)) for place in job.places()}
    while any(waiting.values()):
        op, members = next(found for place in waiting if (found := _ready(job, waiting, place)))
        for member in members:
            waiting[member].popleft()
        start = max(ends[member] for member in members)
        ranks = tuple(job.rank(member) for member in members)
        end = start + _seconds(where, op, ranks)
        for member in members:
            spans.append(_span(job, member, op, ranks, start, end))
            ends[member] = end


def _ready(job: Job, waiting: Mapping[Place, deque[Op]], place: Place) -> tuple[Op, list[Place]] | None:
    """The next call of a rank, once all that take part have come to it."""
    if not waiting[place]:
        return None
    op = waiting[place][0]
    members = [job.place(rank) for rank in job.line(op.axis, place)]
    if op.name == "exchange":
        members = [member for member in members if tied_elements(job, member)]
    together = all(waiting[m] and waiting[m][0][::2] == op[::2] for m in members)
    return (op, members) if together else None


def close_whole(job: Job, where: Cluster, gradients: Mapping[int, Gradients], ends: dict[Place, float], spans: list[Span]) -> None:
    """The same where there is no pipeline. Buckets set out while the last backward still runs, and are waited for after it.

    ``gradients`` by dp rank, in the order in which they came.
    """
    links: dict[tuple[int, Link], float] = {}
    for axis in sorted({axis for axis, *_ in gradients[0]}):
        for nbytes, arrivals in _buckets(job, gradients, axis):
            for members in _lines(job, axis):
                ranks = tuple(job.rank(member) for member in members)
                link = where.link(ranks)
                free = max(links.get((rank, link), 0.0) for rank in ranks)
                start = max(free, *(arrivals[member.dp] for member in members))
                op = Op("all_reduce", nbytes, axis)
                end = start + _seconds(where, op, ranks)
                for member in members:
                    spans.append(_span(job, member, op, ranks, start, end))
                    links[job.rank(member), link] = end
                    ends[member] = max(ends[member], end)
    for op in closing(job, Place(0, 0, 0, 0))[-1:] if job.dp * job.cp > 1 else []:
        for members in _lines(job, op.axis):
            ranks = tuple(job.rank(member) for member in members)
            start = max(ends[member] for member in members)
            end = start + _seconds(where, op, ranks)
            for member in members:
                spans.append(_span(job, member, op, ranks, start, end))
                ends[member] = end


def _buckets(job: Job, gradients: Mapping[int, Gradients], axis: str) -> list[tuple[float, dict[int, float]]]:
    """``(bytes, moment at which each dp rank could send)`` of the buckets of one axis."""
    columns = {dp: [g for g in own if g[0] == axis] for dp, own in gradients.items()}
    found, held = [], 0.0
    for i, (_, nbytes, _, _) in enumerate(columns[0]):
        held += nbytes
        if held >= job.bucket_bytes or i == len(columns[0]) - 1:
            found.append((held, {dp: max(column[i][2:]) for dp, column in columns.items()}))
            held = 0.0
    return found


def _lines(job: Job, axis: str) -> list[list[Place]]:
    lines = dict.fromkeys(job.line(axis, place) for place in job.places())
    return [[job.place(rank) for rank in line] for line in lines]


def _seconds(where: Cluster, op: Op, ranks: tuple[int, ...]) -> float:
    if op.name == "exchange":
        return where.link(ranks).seconds(op.size)
    return where.collective_seconds(op.name, op.size, ranks)


def _span(job: Job, place: Place, op: Op, ranks: tuple[int, ...], start: float, end: float) -> Span:
    own = job.rank(place)
    nbytes = on_the_wire(op, len(ranks))
    name = "send" if op.name == "exchange" else op.name
    return Span(own, COMM, name, start, end, op.axis, nbytes, tuple(r for r in ranks if r != own), "backward")

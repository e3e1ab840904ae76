"""The end of a predicted step: gradients summed over their axes, and the loss; who comes first waits for who comes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minipar.hardware import Cluster, Link
from minipar.planner.job import Job, Place
from minipar.planner.recipe import Op
from minipar.planner.traffic import loss_sum, on_the_wire, tied_sum
from minipar.trace import COMM, Span

Gradient = tuple[str, float, float, float]  # axis, bytes, when it was there, when the link was free
Gradients = Sequence[Gradient]


def close(
    job: Job, where: Cluster, gradients: Mapping[tuple[int, int], Gradients], ends: dict[Place, float], spans: list[Span]
) -> None:
    """From ``ends``, when each rank is done with its row, on to the end of the step. Adds to ``spans``.

    ``gradients`` by pp and dp rank, in the order in which they came. Their buckets set out while ranks still compute, and are
    waited for when the row is done; then copies of a tied embedding are added, and the loss.
    """
    free = _links(job, where, spans)
    for pp in range(job.pp):
        columns = {dp: gradients[pp, dp] for dp in range(job.dp)}
        for axis in sorted({axis for axis, *_ in columns[0]}):
            lines = [line for line in _lines(job, axis) if line[0].pp == pp]
            for nbytes, arrivals in _buckets(job, columns, axis):
                for members in lines:
                    _bucket(job, where, Op("all_reduce", nbytes, axis), members, arrivals, free, ends, spans)
    for members in _lines(job, "pp") if job.config.tied and job.pp > 1 else []:
        holders = [member for member in members if tied_sum(job, member)]
        tied = tied_sum(job, holders[0]) if holders else None
        if tied:
            _together(job, where, tied, holders, ends, spans)
    loss = loss_sum(job)
    if loss:
        for members in _lines(job, loss.axis):
            _together(job, where, loss, members, ends, spans)


def _bucket(
    job: Job,
    where: Cluster,
    op: Op,
    members: list[Place],
    arrivals: Mapping[int, float],
    free: dict[tuple[int, Link], float],
    ends: dict[Place, float],
    spans: list[Span],
) -> None:
    """One bucket starts when the last of its ranks has it, and their links have served what came before."""
    ranks = tuple(job.rank(member) for member in members)
    link = where.link(ranks)
    start = max(*(arrivals[member.dp] for member in members), *(free.get((rank, link), 0.0) for rank in ranks))
    end = start + _seconds(where, op, ranks)
    for member in members:
        spans.append(_span(job, member, op, ranks, start, end))
        free[job.rank(member), link] = end
        ends[member] = max(ends[member], end)


def _together(job: Job, where: Cluster, op: Op, members: list[Place], ends: dict[Place, float], spans: list[Span]) -> None:
    """A call that all ``members`` wait for, once they have come to it."""
    ranks = tuple(job.rank(member) for member in members)
    start = max(ends[member] for member in members)
    end = start + _seconds(where, op, ranks)
    for member in members:
        spans.append(_span(job, member, op, ranks, start, end))
        ends[member] = end


def _links(job: Job, where: Cluster, spans: Sequence[Span]) -> dict[tuple[int, Link], float]:
    """When each rank's links have served what its row put on them."""
    free: dict[tuple[int, Link], float] = {}
    lines: dict[tuple[str, int], Link] = {}
    for span in spans:
        if span.lane != COMM:
            continue
        pair = (span.rank, *span.peers) if span.axis == "pp" else None
        if pair is None and (span.axis, span.rank) not in lines:
            lines[span.axis, span.rank] = where.link(job.line(span.axis, job.place(span.rank)))
        link = where.link(pair) if pair else lines[span.axis, span.rank]
        for rank in pair or (span.rank,):
            free[rank, link] = max(free.get((rank, link), 0.0), span.end)
    return free


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

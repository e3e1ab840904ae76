"""Bytes that each rank of a ``Job`` puts on the wire in one step, axis by axis: exactly those that ``minipar.comm`` counts.

Only where tokens are sent to their experts is it an expectation: who chooses whom is not known before, so every expert is taken
to be chosen equally often; given the choices of a step that was run (see ``routing``), it is exact again. Making groups, and a
pipeline's first word about the shape of its messages, are no traffic.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from minipar.comm.pending import SHARES
from minipar.hardware import Cluster, cluster
from minipar.planner.holdings import own_layers, rank_params, stage_layers, tied_elements
from minipar.planner.job import Job, Local, Place
from minipar.planner.recipe import COUNT, Op, Recipe
from minipar.planner.routing import Routed, travelling

Bytes = Counter[str]  # by axis

LOSS = 8  # bytes: a number in float64


def on_the_wire(op: Op, ranks: int) -> float:
    """Bytes that one of ``ranks`` ranks sends for ``op``."""
    if op.name in SHARES:
        return SHARES[op.name](ranks) * op.size
    return op.size if op.name in ("all_to_all", "exchange") else 0.0


def rank_bytes(job: Job, place: Place, routed: Routed | None = None) -> Bytes:
    """Bytes that the rank at ``place`` sends in one ``blend`` step, by axis."""
    total: Bytes = Counter()
    for rows in job.rows_of(place):
        total.update(_microbatch(job, place, rows))
    if routed is not None and job.ep > 1:
        rows = travelling(job, place, routed)  # to the experts and back; forward, and backward again
        total["ep"] = _counts_sent(job, place) + 2.0 * rows * job.config.width * job.number_bytes  # type: ignore[assignment]
    for op in (*gradient_sums(job, place), tied_sum(job, place), loss_sum(job)):
        if op is not None:
            total[op.axis] += on_the_wire(op, job.size(op.axis))  # type: ignore[assignment]
    return Counter({axis: nbytes for axis, nbytes in total.items() if nbytes})


def bytes_by_axis(job: Job, routed: Routed | None = None) -> dict[str, float]:
    """Bytes that all ranks together put on the wire in one ``blend`` step, by axis: as ``Timeline.bytes_by_axis`` counts them.

    ``routed``: see ``routing``; left out, every expert is taken to be chosen equally often.
    """
    job.refuse()
    total: Bytes = Counter()
    for place in job.places():
        total.update(rank_bytes(job, place, routed))
    return dict(total)


def _counts_sent(job: Job, place: Place) -> float:
    """How many rows to expect goes ahead of them, in every layer and microbatch."""
    layers = sum(0 < layer <= job.config.layers for layer in own_layers(job, place))
    return float(layers * job.microbatches * (job.config.experts - Local(job, place).experts) * COUNT)


def bytes_by_link(job: Job, hardware: str | Cluster) -> dict[str, dict[str, float]]:
    """The same, apart for each link of a cluster: ``{"NVLink 3": {"tp": ...}, "HDR InfiniBand": {"dp": ...}}``.

    An axis counts for the slowest link that one of its rings crosses.
    """
    job.refuse()
    where, found = cluster(hardware), dict[str, dict[str, float]]()
    for place in job.places():
        for axis, nbytes in rank_bytes(job, place).items():
            row = found.setdefault(where.link(job.line(axis, place)).name, {})
            row[axis] = row.get(axis, 0.0) + nbytes
    return found


@lru_cache(maxsize=4096)
def _microbatch(job: Job, place: Place, rows: int) -> Bytes:
    """Of the layers of this rank for one microbatch, there and back, and what goes to other stages."""
    recipe, total = Recipe(Local(job, place), rows), Counter[str]()
    cut, plan = stage_layers(job, place), job.plan
    for stage in plan.stages_of(place.pp):
        for layer in cut[stage]:
            for op in (*recipe.forward(layer), *recipe.backward(layer)):
                total[op.axis] += on_the_wire(op, job.size(op.axis))  # type: ignore[assignment]
        neighbours = [other for other in (stage - 1, stage + 1) if 0 <= other < plan.stages]
        total["pp"] += sum(recipe.boundary() for other in neighbours if plan.placement[other] != place.pp)  # type: ignore[assignment]
    return total


def gradient_sums(job: Job, place: Place) -> list[Op]:
    """One sum for each set of axes that gradients are partial over, in however many buckets it travels."""
    sums: Counter[str] = Counter()
    for held in rank_params(job, place):
        sums[held.axis] += held.elements * job.number_bytes
    return [Op("all_reduce", nbytes, axis) for axis, nbytes in sorted(sums.items()) if axis]


def tied_sum(job: Job, place: Place) -> Op | None:
    """Of a tied embedding's copies on two stages."""
    tied = tied_elements(job, place)
    return Op("exchange", tied * job.number_bytes, "pp") if tied else None


def loss_sum(job: Job) -> Op | None:
    """Of the ranks' shares of the loss: ranks along tp have the same."""
    over = job.joint("pp", "dp", "cp")
    return Op("all_reduce", LOSS, over) if over else None

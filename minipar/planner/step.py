"""The predicted timeline of one step of a ``Job``: when every rank computes, sends and waits, before anyone runs it.

An action of a stage takes what ``RankClock`` says, the schedule's own ``simulate`` says when it starts; then gradients are summed.
The update by the optimizer is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from minipar.hardware import Cluster, Device, cluster
from minipar.pipeline_parallel.action import Action, consumer
from minipar.planner.closing import Gradients, close, close_whole
from minipar.planner.holdings import stage_layers
from minipar.planner.job import Job, Local, Place
from minipar.planner.live import live_memory
from minipar.planner.memory import Memory
from minipar.planner.rank_clock import Piece, RankClock
from minipar.planner.recipe import Op, Recipe
from minipar.planner.traffic import bytes_by_axis
from minipar.trace import COMM, COMPUTE, Span, Timeline

PHASES = {"F": "forward"}


@dataclass(frozen=True)
class Step:
    """What one step of ``job`` is predicted to do on ``where``."""

    job: Job
    where: Cluster
    timeline: Timeline

    @property
    def seconds(self) -> float:
        return self.timeline.makespan

    @property
    def tokens_per_second(self) -> float:
        return self.job.tokens / self.seconds

    @property
    def bubble(self) -> float:
        """The share of the ranks' time in which they do not compute."""
        return self.timeline.makespan_bubble

    @cached_property
    def bytes_by_axis(self) -> dict[str, float]:
        """Bytes that all ranks together put on the wire, exact but for tokens sent to their experts: see ``traffic``."""
        return bytes_by_axis(self.job)

    def memory(self, optimizer: str = "adamw") -> list[Memory]:
        """Bytes on each rank, in order."""
        return [live_memory(self.job, place, optimizer) for place in self.job.places()]


def predict_step(job: Job, hardware: str | Cluster) -> Step:
    """Predict one ``blend`` step. Raises ValueError, with the reason, for a job that cannot run."""
    reason = job.refusal()
    if reason is not None:
        raise ValueError(reason)
    where, spans, ends = cluster(hardware), list[Span](), dict[Place, float]()
    if job.pp == 1:
        gradients = {dp: _whole(job, dp, where, spans, ends) for dp in range(job.dp)}
        close_whole(job, where, gradients, ends, spans)
    else:
        for dp in range(job.dp):
            _pipeline(job, dp, where, spans, ends)
        close(job, where, ends, spans)
    return Step(job, where, Timeline(spans, job.ranks, "predicted"))


def _peers(job: Job, pp: int, dp: int) -> list[Place]:
    """The ranks that share the work of one stage on one part of the batch."""
    return [Place(pp, dp, cp, tp) for cp in range(job.cp) for tp in range(job.tp)]


def _busiest(job: Job, pp: int, dp: int) -> Place:
    """One that has the most to do: the first over tp; under a causal mask dealt out in order, the last over cp."""
    return Place(pp, dp, job.cp - 1 if job.context == "ring" else 0, 0)


def _device(job: Job, pp: int, dp: int, where: Cluster) -> Device:
    """That of the slowest rank among those that wait for each other in every layer."""
    members = {job.rank(place) for place in _peers(job, pp, dp)}
    if job.ep > 1:
        members |= {rank for place in _peers(job, pp, dp) for rank in job.line("ep", place)}
    return min((where.device_of(rank) for rank in sorted(members)), key=lambda device: device.peak_flops)


class _Actions:
    """The pieces of each action of one stage, made once for each number of rows."""

    def __init__(self, job: Job, pp: int, dp: int, where: Cluster) -> None:
        self.job, self.where, self.device = job, where, _device(job, pp, dp, where)
        self.place = _busiest(job, pp, dp)
        self.cut = stage_layers(job, self.place)
        self._made: dict[tuple[str, int, int], list[Piece]] = {}

    def ops(self, kind: str, stage: int, rows: int) -> list[Op]:
        recipe, layers = Recipe(Local(self.job, self.place), rows), self.cut[stage]
        if kind == "F":
            return [op for layer in layers for op in recipe.forward(layer)]
        ops = [op for layer in reversed(layers) for op in recipe.backward(layer) if op.name != "arrive"]
        return [op for op in ops if (op.name == "later") == (kind == "W")] if kind in "IW" else ops

    def clock(self) -> RankClock:
        return RankClock(self.job, self.place, self.where, self.device)

    def pieces(self, kind: str, stage: int, rows: int) -> list[Piece]:
        key = (kind, stage, rows)
        if key not in self._made:
            self._made[key] = self.clock().do(self.ops(*key)).pieces
        return self._made[key]

    def seconds(self, kind: str, stage: int, rows: int) -> float:
        return max((piece.end for piece in self.pieces(kind, stage, rows)), default=0.0)


def _pipeline(job: Job, dp: int, where: Cluster, spans: list[Span], ends: dict[Place, float]) -> None:
    """The spans of all ranks that work on one part of the batch, and when each is done with its row."""
    plan, rows = job.plan, job.rows_of(Place(0, dp, 0, 0))
    actions = [_Actions(job, pp, dp, where) for pp in range(job.pp)]
    costs = {
        Action(kind, stage, mb): actions[pp].seconds(kind, stage, rows[mb])
        for pp, row in enumerate(plan.rows)
        for kind, stage, mb in row
    }
    homes = [job.rank(Place(pp, dp, 0, 0)) for pp in plan.placement]
    links = [where.link((a, b)) for a, b in pairwise(homes)]
    nbytes = Recipe(Local(job, Place(0, dp, 0, 0)), rows[0]).boundary()
    hops = [link.seconds(nbytes) for link in links]
    simulated = plan.simulate(comm=hops, overrides=costs)
    for span in simulated.spans:
        pp, target = span.rank, consumer(Action(span.name, span.stage, span.microbatch), plan.stages)
        pieces = actions[pp].pieces(span.name, span.stage, rows[span.microbatch])
        if target is not None and plan.placement[target] != pp:
            boundary = min(span.stage, target)
            sent = Recipe(Local(job, Place(pp, dp, 0, 0)), rows[span.microbatch]).boundary()
            pieces = [*pieces, Piece("send", span.seconds, span.seconds + hops[boundary], "pp", sent, ())]
        for place in _peers(job, pp, dp):
            spans += _placed(pieces, job.rank(place), span.start, span.name, span.stage, span.microbatch)
    for pp in range(job.pp):
        end = max(span.end for span in simulated.of(pp))
        ends |= dict.fromkeys(_peers(job, pp, dp), end)


def _whole(job: Job, dp: int, where: Cluster, spans: list[Span], ends: dict[Place, float]) -> Gradients:
    """All microbatches one after the other, without a pipeline; the last one's gradients set out as they come."""
    actions = _Actions(job, 0, dp, where)
    clock, layers = actions.clock(), range(job.config.layers + 2)
    rows = job.rows_of(actions.place)
    for microbatch, count in enumerate(rows):
        recipe = Recipe(Local(job, actions.place), count)
        there = [op for layer in layers for op in recipe.forward(layer)]
        back = [op for layer in reversed(layers) for op in recipe.backward(layer)]
        for name, ops in (("F", there), ("B", back)):
            before = len(clock.pieces)
            clock.do(ops, skip="" if microbatch == len(rows) - 1 else "arrive")
            for place in _peers(job, 0, dp):
                spans += _placed(clock.pieces[before:], job.rank(place), 0.0, name, 0, microbatch)
    ends |= dict.fromkeys(_peers(job, 0, dp), clock.now)
    return clock.gradients


def _placed(pieces: Iterable[Piece], rank: int, start: float, action: str, stage: int = 0, microbatch: int = -1) -> list[Span]:
    """Pieces as the spans of one rank, whose action begins at ``start``."""
    return [
        Span(
            rank, COMM if p.name else COMPUTE, p.name or action, start + p.start, start + p.end, p.axis, p.nbytes, p.peers,
            PHASES.get(action, "backward"), -1 if p.name else stage, -1 if p.name else microbatch,
        )
        for p in pieces
    ]  # fmt: skip

"""The predicted timeline of one step of a ``Job``: when every rank computes, sends and waits, before anyone runs it.

An action of a stage takes what ``RankClock`` says, the schedule's own ``simulate`` says when it starts; then gradients are summed.
The update by the optimizer is not part of it: see ``Step.update_seconds``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from minipar.checks import not_one_of, refuse
from minipar.hardware import Cluster, Device, cluster
from minipar.optimizer import moved_numbers
from minipar.pipeline_parallel.action import Action, consumer
from minipar.planner.closing import Gradient, Gradients, close
from minipar.planner.holdings import rank_params, stage_layers
from minipar.planner.job import Job, Local, Place
from minipar.planner.job_memory import OPTIMIZERS, live_memory
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

    def update_seconds(self, optimizer: str = "adamw") -> float:
        """Of the optimizer's update, which follows and is not part of ``seconds``: the slowest rank moves all its numbers."""
        refuse(not_one_of("optimizer", optimizer, OPTIMIZERS))
        moved = moved_numbers(OPTIMIZERS[optimizer]) * self.job.number_bytes
        params = {place: sum(held.elements for held in rank_params(self.job, place)) for place in self.job.places()}
        return max(self.where.device_of(self.job.rank(place)).seconds(0, moved * count) for place, count in params.items())

    def memory(self, optimizer: str = "adamw") -> list[Memory]:
        """Bytes on each rank, in order."""
        return [live_memory(self.job, place, optimizer) for place in self.job.places()]


def predict_step(job: Job, hardware: str | Cluster) -> Step:
    """Predict one ``blend`` step. Raises ValueError, with the reason, for a job that cannot run."""
    job.refuse()
    where, spans, ends = cluster(hardware), list[Span](), dict[Place, float]()
    gradients: dict[tuple[int, int], Gradients] = {}
    for dp in range(job.dp):
        gradients |= (_whole if job.pp == 1 else _pipeline)(job, dp, where, spans, ends)
    close(job, where, gradients, ends, spans)
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
        self._made: dict[tuple[str, int, int], RankClock] = {}

    def ops(self, kind: str, stage: int, rows: int) -> list[Op]:
        recipe, layers = Recipe(Local(self.job, self.place), rows), self.cut[stage]
        if kind == "F":
            return [op for layer in layers for op in recipe.forward(layer)]
        ops = [op for layer in reversed(layers) for op in recipe.backward(layer)]
        return [op for op in ops if (op.name in ("later", "arrive")) == (kind == "W")] if kind in "IW" else ops

    def clock(self) -> RankClock:
        return RankClock(self.job, self.place, self.where, self.device)

    def done(self, kind: str, stage: int, rows: int) -> RankClock:
        """The clock of a rank that started at 0 and has done this action."""
        key = (kind, stage, rows)
        if key not in self._made:
            self._made[key] = self.clock().do(self.ops(*key))
        return self._made[key]

    def seconds(self, kind: str, stage: int, rows: int) -> float:
        return max((piece.end for piece in self.done(kind, stage, rows).pieces), default=0.0)


def _pipeline(job: Job, dp: int, where: Cluster, spans: list[Span], ends: dict[Place, float]) -> dict[tuple[int, int], Gradients]:
    """The spans of all ranks that work on one part of the batch, and when each is done with its row; and its gradients."""
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
    simulated, came = plan.simulate(comm=hops, overrides=costs), defaultdict[tuple[int, int], list[Gradient]](list)
    last = {action.stage: action for row in plan.rows for action in row if action.kind != "F"}
    for span in sorted(simulated.spans, key=lambda span: span.start):
        pp, action = span.rank, Action(span.name, span.stage, span.microbatch)
        done, target = actions[pp].done(span.name, span.stage, rows[span.microbatch]), consumer(action, plan.stages)
        if action == last[action.stage]:
            came[pp, dp] += [(axis, nbytes, span.start + there, span.start + free) for axis, nbytes, there, free in done.gradients]
        for place in _peers(job, pp, dp):
            pieces = done.pieces
            if target is not None and plan.placement[target] != pp:
                pieces = [
                    *pieces,
                    _send(job, place, plan.placement[target], rows[span.microbatch], span, hops[min(span.stage, target)]),
                ]
            spans += _placed(pieces, job.rank(place), where, actions[pp].device, span.start, span.name, span.stage, span.microbatch)
    for pp in range(job.pp):
        end = max(span.end for span in simulated.of(pp))
        ends |= dict.fromkeys(_peers(job, pp, dp), end)
    return dict(came)


def _send(job: Job, place: Place, to: int, rows: int, span: Span, seconds: float) -> Piece:
    """The message that follows an action."""
    nbytes = Recipe(Local(job, place), rows).boundary()
    return Piece("send", span.seconds, span.seconds + seconds, "pp", nbytes, (job.rank(place._replace(pp=to)),))


def _whole(job: Job, dp: int, where: Cluster, spans: list[Span], ends: dict[Place, float]) -> dict[tuple[int, int], Gradients]:
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
                spans += _placed(clock.pieces[before:], job.rank(place), where, actions.device, 0.0, name, 0, microbatch)
    ends |= dict.fromkeys(_peers(job, 0, dp), clock.now)
    return {(0, dp): clock.gradients}


def _placed(
    pieces: Iterable[Piece], rank: int, where: Cluster, slowest: Device, start: float, action: str, stage: int, microbatch: int
) -> Iterator[Span]:
    """Pieces as the spans of one rank, whose action begins at ``start``. If faster than the ``slowest``, it waits."""
    share, phase = slowest.peak_flops / where.device_of(rank).peak_flops, PHASES.get(action, "backward")
    for piece in pieces:
        begin, end = start + piece.start, start + piece.end
        if piece.name:
            yield Span(rank, COMM, piece.name, begin, end, piece.axis, piece.nbytes, piece.peers, phase)
        else:
            done = begin + share * (piece.end - piece.start)
            yield Span(rank, COMPUTE, action, begin, done, phase=phase, stage=stage, microbatch=microbatch)

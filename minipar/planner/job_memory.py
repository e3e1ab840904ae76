"""Bytes of tensors that each rank of a ``Job`` keeps alive, by kind.

Parameters, gradients and the optimizer's state are exact. Experts' activations lie where tokens went: where every expert is taken
to be chosen equally often, that is a guess (see ``routing``). Activations are what autograd keeps for the backward of each layer,
tensor by tensor as in ``planner.memory``, but for the small model as this library computes it: any number format, no dropout.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from minipar.checks import not_one_of, refuse
from minipar.pipeline_parallel.action import Action, Transfer
from minipar.pipeline_parallel.mailbox import ON_THE_WAY
from minipar.planner.holdings import rank_params, stage_layers
from minipar.planner.job import Job, Local, Place
from minipar.planner.memory import Memory
from minipar.planner.recipe import Recipe
from minipar.planner.routing import Routed, arriving, refuse_other_counts

OPTIMIZERS = {"sgd": 0, "momentum": 1, "adamw": 2}  # numbers kept for each parameter
STATISTICS = 2  # of a norm, for each token


def live_memory(job: Job, place: Place, optimizer: str = "adamw", routed: Routed | None = None) -> Memory:
    """Bytes on the rank at ``place``: activations at their peak, when a forward has just ended.

    ``routed``: see ``routing``; layers and microbatches are taken to share its copies equally.
    """
    refuse(not_one_of("optimizer", optimizer, OPTIMIZERS), job.refusal())
    params = sum(held.elements for held in rank_params(job, place)) * job.number_bytes
    share = 1.0
    if routed is not None and job.ep > 1:
        refuse_other_counts(job, routed)
        share = arriving(job, place, routed) / max(1, sum(routed[job.rank(place)]))
    return Memory(params, params, OPTIMIZERS[optimizer] * params, _peak(job, place, share))


def fullest(job: Job, optimizer: str = "adamw") -> Memory:
    """Of the rank that needs the most."""
    return max((live_memory(job, place, optimizer) for place in job.places()), key=lambda memory: memory.total)


def _peak(job: Job, place: Place, share: float) -> float:
    """The most that lies on a rank whenever one of its forwards has ended, in the order of its program.

    ``share``: of as many copies as this rank routes, those that arrive at its experts.

    A message that is expected has its memory already, and becomes the stage's input. Of the gradients sent, the last few are still
    on their way.
    """
    rows, now, most = job.rows_of(place), 0.0, 0.0
    on_the_way: deque[float] = deque()
    for instruction in job.programs[place.pp]:
        message = Recipe(Local(job, place), rows[instruction.microbatch]).boundary()
        if isinstance(instruction, Transfer):
            if instruction.way == "recv":
                now += message
            elif instruction.what == "B":
                on_the_way.append(message)
                now += message - (on_the_way.popleft() if len(on_the_way) > ON_THE_WAY else 0.0)
            continue
        now += _change(job, place, instruction, rows[instruction.microbatch], message, share)
        if instruction.kind == "F":
            most = max(most, now)
    return most


def _change(job: Job, place: Place, action: Action, rows: int, message: float, share: float) -> float:
    """Bytes that an action adds to, or takes off, what its rank holds; messages from other ranks lie there before it."""
    kind, stage, _ = action
    placement = job.plan.placement
    if kind == "F":
        return stage_bytes(job, place, stage, rows, share) - (message if stage and placement[stage - 1] != place.pp else 0.0)
    put_off = deferred_bytes(job, place, stage, rows) if kind in "IW" else 0.0
    if kind == "W":
        return -put_off
    arrived = message if stage + 1 < len(placement) and placement[stage + 1] != place.pp else 0.0
    return put_off - stage_bytes(job, place, stage, rows, share) - arrived


@lru_cache(maxsize=4096)
def deferred_bytes(job: Job, place: Place, stage: int, rows: int) -> float:
    """What a stage keeps after a split backward's first half: inputs and output gradients of the products that are put off."""
    c, local, z = job.config, Local(job, place), job.number_bytes
    tokens = rows * c.seq / job.cp
    layers = stage_layers(job, place)[stage]
    widths = local.q_width + c.width + (c.width + c.experts if c.experts else local.ffn + c.width)
    if job.tp == 1:  # those of tensor-parallel columns are not put off
        widths += c.width + local.q_width + 2 * local.kv_width + (0 if c.experts else c.width + local.ffn)
    head = c.width + local.vocab if job.tp == 1 and c.layers + 1 in layers else 0
    return (sum(0 < layer <= c.layers for layer in layers) * widths + head) * tokens * z


@lru_cache(maxsize=4096)
def stage_bytes(job: Job, place: Place, stage: int, rows: int, share: float = 1.0) -> float:
    """What one stage keeps of one microbatch of ``rows`` rows until its backward."""
    held = sum(layer_bytes(job, place, layer, rows, share) for layer in stage_layers(job, place)[stage])
    goes_on = stage + 1 < job.plan.stages and job.plan.placement[stage + 1] != place.pp
    return held + (Recipe(Local(job, place), rows).boundary() if goes_on else 0.0)


def layer_bytes(job: Job, place: Place, layer: int, rows: int, share: float = 1.0) -> float:
    """What one layer keeps of one microbatch: its input and whatever its backward needs."""
    c, local, z = job.config, Local(job, place), job.number_bytes
    tokens = rows * c.seq / job.cp
    outside = tokens / (job.tp if job.splits_sequence else 1)  # tokens that this rank holds between the matrices
    wide = max(z, 4)
    if layer == 0:
        return tokens * (8 + 1) if job.tp > 1 else 0.0  # which row of the table, and whether it is here
    norm = outside * (c.width * z + STATISTICS * wide) + tokens * c.width * z  # its input, its numbers, its output joined over tp
    if layer == c.layers + 1:
        if job.tp == 1:
            return norm + tokens * c.vocab * z  # logarithms of the probabilities
        return norm + tokens * (2 * local.vocab * wide + 8 + 2 * wide)  # scores and their exponentials, the targets' rows, sums
    mlp = 2 * tokens * local.ffn * z
    if c.experts:  # they take this rank's own tokens, not joined
        mlp = _experts(local, tokens, share) - (tokens - outside) * c.width * z
    return 2 * norm + _attention(local, tokens) + mlp


def _attention(local: Local, tokens: float) -> float:
    """Queries, keys, values, the result, and one number a query and head."""
    job, z = local.job, local.job.number_bytes
    apart = 2 if job.cp > 1 and job.context == "ulysses" else 1  # the result once more, in the order of the tokens
    return tokens * ((1 + apart) * local.q_width + 2 * local.kv_width) * z + tokens * local.heads * max(z, 4)


def _experts(local: Local, tokens: float, share: float) -> float:
    """Rows as they arrive and both hidden products, the results as they return; the router's probabilities; who goes where."""
    c, z = local.job.config, local.job.number_bytes
    own = tokens / (local.job.tp if local.job.tp > 1 and not local.cut_inside else 1)
    copies = own * c.top_k
    arrive = copies * share
    regrouped = 2 * arrive if local.job.ep > 1 and local.experts > 1 else 0.0  # by expert, and back by the rank they came from
    numbers = 3 * copies + own + regrouped  # each copy's token, row and expert, each token's first copy
    rows = arrive * (c.width + 2 * local.expert_ffn) + copies * (c.width + 1)  # the results, each with its weight
    return rows * z + numbers * 8 + 2 * own * c.experts * max(z, 4)

"""The parameters that one rank of a ``Job`` holds, layer by layer, and over which axes each gradient is summed."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from minipar.pipeline_parallel import partition
from minipar.planner.job import Job, Local, Place


class Held(NamedTuple):
    """One parameter."""

    elements: int
    axis: str  # over which their gradients are summed; "" for none
    product: bool = True  # whether every token is multiplied with them: what a pipeline balances its stages by


def layer_params(local: Local, layer: int) -> list[Held]:
    """Of layer 0 (the embedding), 1 to L (blocks) or L + 1 (the head), in order of the model's parameters."""
    if layer == 0:
        return _embedding(local)
    return _head(local) if layer == local.job.config.layers + 1 else [*_attention(local), *_mlp(local)]


def _embedding(local: Local) -> list[Held]:
    c = local.job.config
    return [Held(local.vocab * c.width, _whole(local)), Held(c.seq * c.width, _between(local), False)]


def _head(local: Local) -> list[Held]:
    c = local.job.config
    return [*_norm(local), Held(local.vocab * c.width, _whole(local))]


def _norm(local: Local) -> list[Held]:
    return [Held(local.job.config.width, _between(local), False)] * 2


def _attention(local: Local) -> list[Held]:
    w, q, kv = local.job.config.width, local.q_width, local.kv_rows
    keys = local.job.joint("dp", "cp", "tp") if local.whole_keys else _whole(local)
    queries = [Held(q * w, _whole(local)), Held(q, _whole(local), False)]
    out = [Held(w * q, _whole(local)), Held(w, _between(local), False)]
    shared = [Held(kv * w, keys), Held(kv, keys, False)] * 2
    return [*_norm(local), *queries, *(shared + out if local.job.tp == 1 else out + shared)]


def _mlp(local: Local) -> list[Held]:
    c, norm = local.job.config, _norm(local)
    if c.experts:
        return [*norm, *_experts(local)]
    up = [Held(local.ffn * c.width, _whole(local)), Held(local.ffn, _whole(local), False)]
    return [*norm, *up, Held(c.width * local.ffn, _whole(local)), Held(c.width, _between(local), False)]


def _experts(local: Local) -> list[Held]:
    job, c = local.job, local.job.config
    tokens_differ = local.cut_inside or job.tp == 1
    router = Held(c.experts * c.width, job.joint("dp", "cp") if tokens_differ else job.joint("dp", "cp", "tp"))
    axis = _whole(local) if local.cut_inside else job.joint("edp")
    found = [router, *[Held(local.experts * c.width * local.expert_ffn, axis)] * 3]
    shared = c.moe.shared if c.moe else 0
    return [*found, *[Held(c.width * shared * c.ffn, _between(local))] * 3] if shared else found


def _whole(local: Local) -> str:
    """The axes of a parameter whose every use is a part of the batch or the sequence."""
    return local.job.joint("dp", "cp")


def _between(local: Local) -> str:
    """Of one that meets only this rank's tokens where the sequence is split over tp."""
    return local.job.joint("dp", "cp", "tp") if local.job.splits_sequence else _whole(local)


def matrix_elements(local: Local, layer: int) -> int:
    return sum(held.elements for held in layer_params(local, layer) if held.product)


@lru_cache(maxsize=1024)
def stage_layers(job: Job, place: Place) -> list[range]:
    """The layers of every stage, as the pipeline cuts them; all of them where there is no pipeline."""
    local, layers = Local(job, place), range(job.config.layers + 2)
    if job.pp == 1:
        return [range(len(layers))]
    sizes = partition([matrix_elements(local, layer) for layer in layers], job.plan.stages)
    return [range(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]


def own_layers(job: Job, place: Place) -> list[int]:
    """The layers on one rank, in order."""
    cut = stage_layers(job, place)
    return [layer for stage in (job.plan.stages_of(place.pp) if job.pp > 1 else [0]) for layer in cut[stage]]


@lru_cache(maxsize=1024)
def rank_params(job: Job, place: Place) -> list[Held]:
    """All parameters of one rank. A head tied to an embedding on the same rank is that embedding."""
    local, layers = Local(job, place), own_layers(job, place)
    head = job.config.layers + 1
    found = [held for layer in layers for held in layer_params(local, layer)]
    if job.config.tied and 0 in layers and head in layers:
        found.pop()
    return found


def tied_elements(job: Job, place: Place) -> int:
    """Elements of a tied embedding that this rank must sum with another stage's copy."""
    layers, head = own_layers(job, place), job.config.layers + 1
    ends = (0 in layers) != (head in layers)
    return Local(job, place).vocab * job.config.width if job.config.tied and ends else 0

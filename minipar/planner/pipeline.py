"""The pipeline of a planned split as a picture: the clock's costs through the schedule's own ``simulate``."""

from __future__ import annotations

from minipar.hardware import Cluster, cluster
from minipar.pipeline_parallel import build
from minipar.planner.clock import Clock
from minipar.planner.shape import Transformer
from minipar.planner.split import Split
from minipar.trace import Timeline

MOST_ACTIONS = 100_000


def timeline(model: Transformer, split: Split, hardware: str | Cluster) -> Timeline:
    """When each stage works on each microbatch in 1F1B, or its interleaved form where there are ``chunks``; no gradient sync yet.

    ``Clock.step`` gives the same in a formula, for thousands of splits. Raises ValueError for a split that is impossible, or whose
    picture would have more than ``MOST_ACTIONS`` actions.
    """
    reason = split.refusal(model)
    if reason is not None:
        raise ValueError(reason)
    stages = split.pp * split.chunks
    if 2 * stages * split.microbatches > MOST_ACTIONS:
        raise ValueError(f"{2 * stages * split.microbatches:,} actions make no picture: take fewer than {MOST_ACTIONS:,}")
    clock = Clock(model, split, cluster(hardware))
    sends = clock.layer_tensor() + clock.layer_experts()
    layer_forward = clock.layer_forward() + sends / 2
    layer_back = clock.layer_both() + sends - layer_forward
    layers = [split.layers_on(stage % split.pp, model) / split.chunks for stage in range(stages)]
    forward, back = ([count * seconds for count in layers] for seconds in (layer_forward, layer_back))
    forward[-1] += clock.head_both() / 3
    back[-1] += clock.head_both() * 2 / 3
    schedule = build("interleaved" if split.chunks > 1 else "1f1b", split.pp, split.microbatches, split.chunks)
    return schedule.simulate(forward=forward, input_grad=back, weight_grad=0, comm=clock.hop())

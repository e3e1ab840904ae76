"""Pipelines on real ranks: ``python -m tests.benchmarks.bench_pipeline [speed] [paced] [simulate]``; all three if none is named.

* speed: a step of ours against torch.distributed.pipelining's, same stages, same microbatches, alternating in one run over gloo;
  seconds measured, target a ratio <= 1.0.
* paced: eight ranks, 16 microbatches, F, I and W of a rank 20 ms each, a small layer for each stage as in the lab (many ranks share
  few cores). Bubble paced beside predicted, target within 2 points.
* simulate: 64 ranks, 2,048 microbatches in 1F1B under 1 s; zb-auto for 32 ranks, 256 microbatches under 5 s.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several ranks share few cores

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining as torchs
from torch import nn

from course.labs.work_pipeline import WIDTH, squares
from minipar import GPTConfig, Mesh
from minipar.data import Batch, batch
from minipar.model import GPT, loss_sum
from minipar.pipeline_parallel import NAMES, build, default_chunks
from minipar.pipeline_parallel.run import Pipeline, actions_of
from minipar.trace import now
from tests.benchmarks.pairs import alternate, on_ranks, summary

ROUNDS = 15
PAIRS = {  # ours -> torch's class of the same schedule
    "gpipe": torchs.ScheduleGPipe,
    "1f1b": torchs.Schedule1F1B,
    "interleaved": torchs.ScheduleInterleaved1F1B,
    "zb-v": torchs.ScheduleZBVZeroBubble,
    "dualpipe-v": torchs.ScheduleDualPipeV,
}
SHAPES = {  # one where a step is mostly bookkeeping, one where it is mostly matrix products
    "small": (GPTConfig(layers=6, width=32, heads=4, seq=32), 8),
    "larger": (GPTConfig(layers=6, width=256, heads=4, seq=128), 16),
}
PACED_RANKS, PACED_MICROBATCHES, PACED_SECONDS = 8, 16, 0.02


def torch_step(
    name: str, model: GPT, sizes: list[int], placement: tuple[int, ...], microbatches: int, data: Batch
) -> Callable[[], None]:
    """The same stages in torch.distributed.pipelining."""
    rank, layers, stages, start = dist.get_rank(), model.layers(), [], 0
    for index, size in enumerate(sizes):
        if placement[index] == rank:
            module = nn.Sequential(*layers[start : start + size])
            stages.append(torchs.PipelineStage(module, index, len(sizes), torch.device("cpu")))
        start += size
    single = name in ("gpipe", "1f1b")
    schedule = PAIRS[name](
        stages[0] if single else stages,
        microbatches,
        loss_fn=lambda scores, targets: loss_sum(scores, targets) / data.total,
        scale_grads=False,
    )
    first, last = placement[0] == rank, placement[-1] == rank

    def step() -> None:
        arguments = (data.inputs,) if first else ()
        keywords: dict[str, Any] = {"target": data.targets, "losses": []} if last else {}
        schedule.step(*arguments, **keywords)

    return step


def speed(name: str, shape: str, microbatches: int) -> tuple[list[tuple[float, float]], float]:
    config, rows = SHAPES[shape]
    mesh = Mesh(pp=dist.get_world_size())
    schedule = build(name, mesh["pp"].size, microbatches)
    ours, theirs = GPT(config), GPT(config)
    pipe = Pipeline(ours, schedule, mesh)
    data = batch(0, rows, config.seq)
    step = torch_step(name, theirs, pipe.sizes, schedule.placement, microbatches, data)
    pipe.accumulate(data)
    step()
    worst = _largest_difference(pipe.model, theirs)
    return alternate(lambda: pipe.accumulate(data), step, ROUNDS), worst


def _largest_difference(ours: nn.Module, theirs: GPT) -> float:
    """Both made the same gradients, or the race is off."""
    wanted = dict(theirs.named_parameters())
    return max(float((p.grad - wanted[name].grad).abs().max()) for name, p in ours.named_parameters() if p.grad is not None)


def paced(names: list[str]) -> dict[str, tuple[list[float], list[float], float]]:
    """By schedule: the bubbles of some steps, their idle shares of the makespan, and the prediction."""
    mesh, out = Mesh(pp=dist.get_world_size()), {}
    x = torch.randn(PACED_MICROBATCHES, WIDTH)
    data = Batch(x, x, total=PACED_MICROBATCHES)
    for name in names:
        unit = PACED_SECONDS / default_chunks(name)
        schedule = build(name, mesh["pp"].size, PACED_MICROBATCHES)
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(schedule.stages)))
        pipe = Pipeline(model, schedule, mesh, loss_sum=squares, pace={"F": unit, "I": unit, "W": unit, "B": 2 * unit})
        bubbles, shares = [], []
        for _ in range(4):
            dist.barrier()
            pipe.accumulate(data)
            t = actions_of(pipe.timeline())
            bubbles.append(t.bubble)
            shares.append(t.makespan_bubble)
        out[name] = (bubbles[1:], shares[1:], schedule.simulate(unit, unit, unit).bubble)
    return out


def run_speed() -> None:
    print("step time, ours | torch.distributed.pipelining (measured, gloo, CPU)")
    for shape in SHAPES:
        for name in PAIRS:
            for p in (2,) if shape == "larger" else (2, 4):
                everyone = on_ranks(p, speed, name, shape, 2 * p)
                pair, worst = summary([times for times, _ in everyone]), max(worst for _, worst in everyone)
                print(f"  {shape:7} {name:12} p={p} m={2 * p}  {pair}  largest gradient difference {worst:.0e}", flush=True)


def run_paced() -> None:
    print(f"bubble, p={PACED_RANKS} m={PACED_MICROBATCHES}, 20 ms each of F, I, W on a rank (paced | predicted)")
    results = on_ranks(PACED_RANKS, paced, list(NAMES))[0]
    for name, (bubbles, shares, predicted) in results.items():
        measured = statistics.median(bubbles)
        points = 100 * (measured - predicted)
        print(
            f"  {name:12} {measured:z.4f} | {predicted:z.4f}  off by {points:+.2f} points  "
            f"(steps {min(bubbles):z.4f} to {max(bubbles):z.4f}; of the makespan {statistics.median(shares):z.4f})"
        )


def run_simulate() -> None:
    schedule = build("1f1b", 64, 2048)
    for what, work in (
        ("simulate 1f1b p=64 m=2048", schedule.simulate),
        ("build and simulate it", lambda: build("1f1b", 64, 2048).simulate().bubble),
        ("zb-auto p=32 m=256 memory=64", lambda: build("zb-auto", 32, 256, memory=64, forward=2, input_grad=2, comm=0.1)),
    ):
        start = now()
        work()
        print(f"  {what}: {now() - start:.2f} s (measured)")


if __name__ == "__main__":
    for part in sys.argv[1:] or ("speed", "paced", "simulate"):
        {"speed": run_speed, "paced": run_paced, "simulate": run_simulate}[part]()

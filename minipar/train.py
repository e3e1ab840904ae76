"""The training loop: the small GPT on real text, over any mesh of ranks. The same program under ``torchrun`` and ``minipar run``:

torchrun --nproc-per-node 4 -m minipar.train --dp 4 --steps 100 --json report.json
minipar run --ranks 4 --dp 4 --steps 100 --json report.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minipar import blend, comm, context_parallel, data, expert_parallel, pacing
from minipar.context_parallel import METHODS as CONTEXTS
from minipar.ledger import Layout
from minipar.mesh import Mesh
from minipar.model import GPT, GPTConfig
from minipar.parameters import grad_norm
from minipar.pipeline_parallel import NAMES as SCHEDULES
from minipar.pipeline_parallel import build as build_schedule
from minipar.trace import COMM, Span, Timeline, now, tracer


class RefusedError(ValueError):
    """This model cannot be split in this way; the text says why."""


OnStep = Callable[[int, float], None]  # step and loss

AXES = {"dp": "the rows", "pp": "the layers", "cp": "the tokens of a row", "tp": "the matrices", "ep": "the experts"}


def parser(prog: str = "python -m minipar.train") -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=prog, description="Train the small GPT on the text of Python's standard library.")
    split = top.add_argument_group("split")
    split.add_argument("--dp", type=int, help="ranks that the rows are split over (default: those that the other axes leave)")
    for name, what in AXES.items():
        if name != "dp":
            split.add_argument(f"--{name}", type=int, default=1, help=f"ranks that {what} are split over")
    split.add_argument("--microbatches", type=int, default=1, help="parts of each rank's rows, worked on one after the other")
    split.add_argument("--schedule", default="1f1b", choices=SCHEDULES, help="order of the pipeline's work, where pp > 1")
    split.add_argument("--chunks", type=int, help="model chunks on each rank of the pipeline (default: the schedule's own number)")
    split.add_argument("--sequence-parallel", action="store_true", help="split over tp what lies between the matrices, too")
    split.add_argument("--context", default="zigzag", choices=CONTEXTS, help="how attention goes over cp")
    split.add_argument("--bucket-mb", type=float, default=blend.BUCKET_BYTES / 1e6, help="MB of gradients that travel together")
    model = top.add_argument_group("model")
    for name, default in (("layers", 4), ("width", 128), ("heads", 4), ("seq", 128)):
        model.add_argument(f"--{name}", type=int, default=default)
    model.add_argument("--experts", type=int, default=0, help="experts in each layer (default: none, every MLP is dense)")
    model.add_argument("--top-k", type=int, default=2, help="experts that each token goes to")
    model.add_argument("--tied", action="store_true", help="the head shares the matrix of the embedding")
    training = top.add_argument_group("training")
    training.add_argument("--steps", type=int, default=100)
    training.add_argument("--rows", type=int, default=16, help="sequences in the global batch")
    training.add_argument("--lr", type=float, default=1e-3)
    training.add_argument("--clip", type=float, default=1.0, help="the largest norm of the gradient; 0: any")
    training.add_argument("--seed", type=int, default=0)
    top.add_argument("--json", type=Path, help="write the report here")
    top.add_argument("--trace", type=Path, help="write a Chrome trace here, to open in https://ui.perfetto.dev")
    return top


def complete(options: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Fill in ``--dp``, and refuse what cannot run on this many ranks with a ``ValueError`` that says why."""
    others = options.pp * options.cp * options.tp
    if options.dp is None:
        options.dp = max(1, ranks // others)
    if options.dp * others != ranks:
        factors = " x ".join(f"{name} {getattr(options, name)}" for name in ("dp", "pp", "cp", "tp"))
        raise ValueError(f"{factors} = {options.dp * others} ranks, but there are {ranks}: the sizes must multiply to the ranks")
    for name in ("steps", "rows", "microbatches"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(options, name)}")
    parts = options.dp * options.microbatches
    if options.rows < parts:
        raise ValueError(
            f"a batch of {options.rows} rows does not reach for dp {options.dp} x {options.microbatches} microbatches: "
            f"take at least --rows {parts}"
        )
    if not options.bucket_mb > 0:
        raise ValueError(f"--bucket-mb must be above 0, not {options.bucket_mb}")
    config = gpt_config(options)
    if options.pp > 1:
        stages = build_schedule(options.schedule, options.pp, options.microbatches, options.chunks).stages
        if stages > config.layers + 2:
            have = f"{config.layers} layers, the embedding and the head"
            raise ValueError(f"{have} are too few for {stages} stages: take more --layers")
    if options.ep > 1 and not options.experts:
        raise ValueError(f"--ep {options.ep} splits experts, and this model has none: take --experts, or leave --ep out")
    return options


def gpt_config(options: argparse.Namespace) -> GPTConfig:
    return GPTConfig(
        options.layers,
        options.width,
        options.heads,
        seq=options.seq,
        tied=options.tied,
        experts=options.experts,
        top_k=options.top_k,
    )


def train(options: argparse.Namespace, device: torch.device | str = "cpu", on_step: OnStep | None = None) -> dict[str, Any]:
    """Run on every rank. ``on_step`` is called on each after every step. Returns the report, the same on all ranks."""
    config = gpt_config(options)
    try:
        mesh = Mesh(**{name: getattr(options, name) for name in AXES})
        layout = blend.build(
            config, mesh, GPT(config, options.seed).to(device), options.bucket_mb * 1e6, options.microbatches,
            options.schedule, options.chunks, options.sequence_parallel, options.context,
        )  # fmt: skip
        context_parallel.cut(data.batch(0, 1, options.seq), mesh["cp"], options.context)
    except ValueError as e:
        raise RefusedError(str(e)) from e
    optimizer = torch.optim.AdamW(layout.model.parameters(), lr=options.lr)
    losses: list[float] = []
    sent: Counter[tuple[str, str]] = Counter()
    tokens, started = 0, now()
    for step in range(options.steps):
        if step == 1:
            tokens, started = 0, now()  # the first step builds the buckets and warms the caches
        batch = data.batch(step, options.rows, options.seq)
        with tracer.watch() as spans:
            losses.append(one_step(layout, optimizer, batch.to(device), mesh, options.clip))
        sent.update(bytes_sent(spans))
        tokens += batch.total
        if on_step is not None:
            on_step(step, losses[-1])
    return _report(options, mesh, layout, losses, tokens / (now() - started), sent)


def one_step(layout: Layout, optimizer: torch.optim.Optimizer, batch: data.Batch, mesh: Mesh, clip: float = 0.0) -> float:
    """Forward, backward and update on the global ``batch``; returns the global mean loss before the update."""
    optimizer.zero_grad()
    loss = layout.step(batch)
    with tracer.during("optimizer"), tracer.span("optimizer"):
        if clip:
            params = list(layout.model.parameters())
            scale = (clip / grad_norm(params, mesh)).clamp(max=1.0)
            torch._foreach_mul_([p.grad for p in params if p.grad is not None], scale.item())
        optimizer.step()
    expert_parallel.end_step(layout.model)
    return loss.item()


def bytes_sent(spans: Sequence[Span]) -> Counter[tuple[str, str]]:
    """Bytes that this rank put on the wire, by operation and axis."""
    sent: Counter[tuple[str, str]] = Counter()
    for span in spans:
        if span.lane == COMM and span.nbytes:
            sent[span.name, span.axis] += span.nbytes  # type: ignore[assignment]
    return sent


def _report(
    options: argparse.Namespace, mesh: Mesh, layout: Layout, losses: list[float], speed: float, sent: Counter[tuple[str, str]]
) -> dict[str, Any]:
    everyones: Counter[tuple[str, str]] = Counter()
    for one in comm.gather_objects(sent, mesh.world):
        everyones.update(one)
    timed = "measured" if pacing.current() is None else "paced"
    return {
        "text": {"sha256": data.corpus_sha256(), "bytes": len(data.corpus())},
        "model": asdict(gpt_config(options)) | {"parameters": sum(p.numel() for p in layout.model.parameters())},
        "split": {name: getattr(options, name) for name in AXES} | {"microbatches": options.microbatches},
        "ranks": mesh.world.size,
        "training": {name: getattr(options, name) for name in ("steps", "rows", "lr", "clip", "seed", "bucket_mb")},
        "loss": {"values": losses, "source": "measured"},
        "tokens_per_second": {"value": speed, "source": timed, "steps": max(1, options.steps - 1)},
        "bytes_by_collective": {
            "value": {f"{op} over {axis}": nbytes for (op, axis), nbytes in sorted(everyones.items())},
            "source": "counted",
            "what": "put on the wire by all ranks together, in all steps",
        },
    }


def summary(report: dict[str, Any]) -> str:
    """The report in a few lines."""
    losses, speed = report["loss"]["values"], report["tokens_per_second"]
    lines = [
        f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps",
        f"{speed['value']:,.0f} tokens/s ({speed['source']})",
    ]
    lines += [f"{nbytes / 1e6:,.1f} MB by {what} (counted)" for what, nbytes in report["bytes_by_collective"]["value"].items()]
    return "\n".join([*lines, f"text sha256 {report['text']['sha256'][:16]}..."])


def main(argv: Sequence[str] | None = None) -> int:
    """One rank of ``torchrun``, or a single process without it. Exit code 2: refused, and a sentence said why."""
    options = parser().parse_args(argv)
    first = os.environ.get("RANK", "0") == "0"
    try:
        complete(options, int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError as e:
        if first:
            print(f"minipar.train: {e}", file=sys.stderr)
        return 2
    device = _join()
    spans: list[Span] = []

    def on_step(step: int, loss: float) -> None:
        if options.trace is not None:
            spans.extend(tracer.drain())
        else:
            tracer.drain()
        if first and (step + 1) % max(1, options.steps // 20) == 0:
            print(f"step {step + 1:5} of {options.steps}  loss {loss:.4f}", flush=True)

    try:
        report = train(options, device, on_step)
    except RefusedError as e:
        if first:
            print(f"minipar.train: {e}", file=sys.stderr)
        return 2
    gathered = [span for each in comm.gather_objects(spans) for span in each]
    if first:
        write(options, report, Timeline(gathered, report["ranks"]))
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


def write(options: argparse.Namespace, report: dict[str, Any], timeline: Timeline) -> None:
    """Print the summary; write the report and the trace where they are wanted."""
    print(summary(report))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.trace is not None:
        timeline.to_chrome_trace(options.trace)


def _join() -> torch.device:
    """Join the ranks that ``torchrun`` started; the device this one computes on."""
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    device = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:
        own_gpu = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        dist.init_process_group("nccl" if own_gpu and gpus else "gloo")
        tracer.rank = dist.get_rank()
    return device


if __name__ == "__main__":
    sys.exit(main())

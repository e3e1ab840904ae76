"""The training loop: the small GPT on real text, over any mesh of ranks. The same program under ``torchrun`` and ``minipar run``:

torchrun --nproc-per-node 4 -m minipar.train --dp 4 --steps 100 --json report.json
minipar run --ranks 4 --dp 4 --steps 100 --json report.json
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from minipar import blend, comm, context_parallel, data, expert_parallel, pacing
from minipar import optimizer as optim
from minipar.checks import RefusedError
from minipar.free_memory import refuse_too_large
from minipar.held import held, kept_for_backward
from minipar.ledger import Layout
from minipar.mesh import Mesh
from minipar.model import GPT
from minipar.options import AXES, complete, gpt_config, parser, refuse_unwritable
from minipar.output import may_go_unread
from minipar.report import Measured, bytes_sent, report, write
from minipar.trace import Span, Timeline, tracer
from minipar.unfinished import sweep

OnStep = Callable[[int, float], None]  # step and loss
EVALUATION_BATCHES = 4  # of held-out text, as large as the global batch


class Training:
    """A model on its mesh, its optimizer, and how far they have come."""

    def __init__(self, options: argparse.Namespace, device: torch.device | str) -> None:
        self.options, self.device = options, device
        config = gpt_config(options)
        model = GPT(config, options.seed).to(device, getattr(torch, options.dtype))
        self.parameters = sum(p.numel() for p in model.parameters())
        self.mesh = Mesh(**{name: getattr(options, name) for name in AXES})
        self.layout = blend.build(
            config, self.mesh, model, options.bucket_mb * 1e6, options.microbatches,
            options.schedule, options.chunks, options.sequence_parallel, options.context,
        )  # fmt: skip
        context_parallel.cut(data.batch(0, 1, options.seq), self.mesh["cp"], options.context)
        self.optimizer = optim.build(options.optimizer, self.layout.model, options.lr, options.weight_decay)
        self.losses: list[float] = []
        self.held_out: list[tuple[int, float]] = []
        self.measured = Measured()

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.losses)

    def advance(self) -> float:
        """One step; returns its loss."""
        o, first = self.options, not self.measured.seconds
        batch = data.batch(self.step, o.rows, o.seq).to(self.device)
        self.layout.seed(o.seed, self.step)
        rate = optim.learning_rate(self.step, o.steps, o.lr, o.warmup, o.final_lr)
        optim.set_learning_rate(self.optimizer, rate)
        began = tracer.clock()
        with tracer.watch() as spans, kept_for_backward(self.layout.model) if first else nullcontext() as kept:
            self.losses.append(one_step(self.layout, self.optimizer, batch, self.mesh, o.clip))
        self.measured.seconds.append(tracer.clock() - began)
        self.measured.tokens += batch.total
        self.measured.sent.update(bytes_sent(spans))
        if kept is not None:
            self.measured.memory = held(self.layout.model, self.optimizer) | {"activations": kept.most}
        return self.losses[-1]

    def evaluate(self) -> float:
        """The mean loss on text that is never trained on: the same batches each time, and for every split."""
        batches = [data.batch(i, self.options.rows, self.options.seq, "held-out") for i in range(EVALUATION_BATCHES)]
        losses = [self.layout.evaluate(batch.to(self.device)).item() for batch in batches]
        self.held_out.append((self.step, sum(losses) / len(losses)))
        return self.held_out[-1][1]

    def report(self) -> dict[str, Any]:
        """The same on every rank; every rank must ask, after at least one step."""
        if not self.measured.seconds:
            raise ValueError("nothing was measured yet: a report needs at least one step, by advance()")
        bubble = self.layout.bubble()
        return report(self.options, self.mesh, self.parameters, self.losses, self.held_out, self.measured, bubble)


def train(options: argparse.Namespace, device: torch.device | str = "cpu", on_step: OnStep | None = None) -> dict[str, Any]:
    """Run on every rank. ``on_step`` is called on each after every step. Returns the report, the same on all ranks."""
    refuse_too_large(options, torch.device(device))
    try:
        run = Training(options, device)
    except ValueError as e:
        raise RefusedError(str(e)) from e
    save = _checkpoints(options, run) if options.save is not None else lambda: None
    if options.evaluate_every and not run.step:
        run.evaluate()
    while run.step < options.steps:
        loss, done = run.advance(), run.step
        last = done == options.steps
        if options.evaluate_every and (last or done % options.evaluate_every == 0):
            run.evaluate()
        if last or (options.save_every and done % options.save_every == 0):
            save()
        if on_step is not None:
            on_step(done - 1, loss)
    return run.report()


def _checkpoints(options: argparse.Namespace, run: Training) -> Callable[[], None]:
    """Go on from the last checkpoint if that is wanted; returns what saves the next one. Every rank must call both."""
    from minipar.checkpoint import Checkpoints, Progress  # only where needed: torch's part of it takes a while to import

    same = {
        "model": asdict(gpt_config(options)), "dtype": options.dtype, "optimizer": options.optimizer, "seed": options.seed,
        "text": data.corpus_sha256(),
    }  # fmt: skip
    folder = Checkpoints(options.save, run.mesh.world)
    last = folder.latest()
    if last is not None and not options.resume:
        raise RefusedError(f"{options.save} holds {last.name} already: add --resume to go on from it, or take another folder")
    if last is not None:
        before = folder.load(last, same, run.layout.model, run.optimizer, run.mesh)
        run.losses, run.held_out = before.losses, before.held_out
        if run.step >= options.steps:
            raise RefusedError(f"{last} has done {run.step} steps already: ask for more than that with --steps")

    def save() -> None:
        folder.save(Progress(same, run.step, run.losses, run.held_out), run.layout.model, run.optimizer, run.mesh)

    return save


def one_step(layout: Layout, optimizer: torch.optim.Optimizer, batch: data.Batch, mesh: Mesh, clip: float = 0.0) -> float:
    """Forward, backward and update on the global ``batch``; returns the global mean loss before the update."""
    optimizer.zero_grad()
    loss = layout.step(batch)
    with tracer.during("optimizer"), tracer.span("optimizer"):
        if clip:
            optim.clip(layout.model.parameters(), mesh, clip)
        with pacing.compute(nbytes=optim.moved_bytes(optimizer)):
            optimizer.step()
    expert_parallel.end_step(layout.model)
    return loss.item()


def main(argv: Sequence[str] | None = None) -> int:
    """One rank of ``torchrun``, or a single process without it. Exit code 2: refused, and a sentence said why."""
    first = os.environ.get("RANK", "0") == "0"
    try:
        options = parser().parse_args(argv)
        try:
            complete(options, int(os.environ.get("WORLD_SIZE", "1")))
        except ValueError as e:
            raise RefusedError(str(e)) from e
        if first:
            refuse_unwritable(options)
            _tidy_when_ended(options)
        with may_go_unread():
            _run(options, first)
    except RefusedError as e:
        if first:
            print(f"minipar.train: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if first and options.save is not None:
            sweep(options.save)
        return 130
    return 0


def _tidy_when_ended(options: argparse.Namespace) -> None:
    """Where torchrun ends this rank (Ctrl-C, or another rank failed), no half-written checkpoint stays behind."""

    def end(*_: object) -> None:
        time.sleep(0.3)  # until the other ranks of this host, ended at the same moment, write no more
        sweep(options.save)
        os._exit(128 + signal.SIGTERM)

    if options.save is not None:
        signal.signal(signal.SIGTERM, end)


def _run(options: argparse.Namespace, first: bool) -> None:
    device = _join()
    spans: list[Span] = []

    def on_step(step: int, loss: float) -> None:
        if options.trace is not None:
            spans.extend(tracer.drain())
        else:
            tracer.drain()
        if first and (step + 1) % max(1, options.steps // 20) == 0:
            print(f"step {step + 1:5} of {options.steps}  loss {loss:.4f}", flush=True)

    found = train(options, device, on_step)
    gathered = [span for each in comm.gather_objects(spans) for span in each]
    if first:
        write(options, found, Timeline(gathered, found["ranks"]))
    if dist.is_initialized():
        dist.destroy_process_group()


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

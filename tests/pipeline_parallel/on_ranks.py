"""What the tests of the runtime do inside the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minipar import GPTConfig, Mesh, comm, data, ledger
from minipar.data import Batch
from minipar.model import GPT
from minipar.pipeline_parallel import Schedule, build
from minipar.pipeline_parallel.run import Pipeline, actions_of
from minipar.trace import Span

TINY = {"layers": 10, "width": 8, "heads": 2, "vocab": 256, "seq": 6}


def ledger_of(
    config: GPTConfig, schedule: Schedule, mesh: dict[str, int], options: dict[str, Any], compare: dict[str, Any]
) -> str | None:
    """None if the pipeline equals the reference; else what the ledger says."""
    book = ledger.compare(config, Mesh(**mesh), lambda _, axes, model: Pipeline(model, schedule, axes, **options), **compare)
    return None if book.ok else str(book)


def mean_of_means(scores: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=data.IGNORE)


def train(config: GPTConfig, name: str, microbatches: int, steps: int, checkpointed: bool = False, seed: int = 0) -> dict[str, Any]:
    """Some steps of SGD; the losses, and by name the parameters and last gradients that this rank holds."""
    mesh = Mesh(pp=comm.world().size)
    model = GPT(config).double()
    if checkpointed:
        for block in model.blocks:
            _recompute(block)
    pipe = Pipeline(model, build(name, mesh["pp"].size, microbatches), mesh, seed=seed)
    losses = []
    for step in range(steps):
        for p in pipe.model.parameters():
            p.grad = None
        losses.append(pipe.step(data.batch(step, 2 * microbatches, config.seq, ragged=True)).item())
        with torch.no_grad():
            for p in pipe.model.parameters():
                p -= 0.1 * p.grad
    named = dict(pipe.model.named_parameters())
    return {
        "losses": losses,
        "parameters": {name: p.detach() for name, p in named.items()},
        "gradients": {name: p.grad for name, p in named.items()},
    }


def _recompute(block: nn.Module) -> None:
    plain = block.forward
    block.forward = lambda x: torch.utils.checkpoint.checkpoint(plain, x, use_reentrant=False)


def one_step(schedule: Schedule, rows: int, config: GPTConfig, **options: Any) -> dict[str, Any]:
    """One step, and what was counted in it."""
    mesh = Mesh(pp=schedule.ranks)
    pipe = Pipeline(GPT(config).double(), schedule, mesh, **options)
    pipe.step(data.batch(0, rows, config.seq))
    timeline = pipe.timeline()
    return {
        "peak": pipe.peak_activations,
        "left": sum(stage.in_flight for stage in pipe.stages.values()),
        "order": [[(s.name, s.stage, s.microbatch) for s in actions_of(timeline).of(rank)] for rank in range(schedule.ranks)],
        "bytes": timeline.bytes_by_axis().get("pp", 0),
        "source": timeline.source,
        "sizes": pipe.sizes,
    }


def paced_actions(schedule: Schedule, pace: dict[str, Any]) -> list[Span]:
    """The actions of a paced step, of all ranks."""
    pipe = Pipeline(GPT(GPTConfig(**TINY)), schedule, Mesh(pp=schedule.ranks), pace=pace)
    pipe.step(data.batch(0, schedule.microbatches, TINY["seq"]))
    return actions_of(pipe.timeline()).spans


def announcements(schedule: Schedule) -> list[int]:
    """How often a rank says or hears ahead what a message looks like: in a first step, and in one of a mailbox that remembers."""
    calls = [0]

    def counted(call: Any) -> Any:
        def inside(*args: Any) -> Any:
            calls[0] += 1
            return call(*args)

        return inside

    send, recv = comm.send, comm.recv
    comm.send, comm.recv = counted(send), counted(recv)
    try:
        first, second = (Pipeline(GPT(GPTConfig(**TINY)), schedule, Mesh(pp=schedule.ranks)) for _ in range(2))
        batch = data.batch(0, schedule.microbatches, TINY["seq"])
        first.accumulate(batch)
        before, calls[0] = calls[0], 0
        second.mail.remember(first.mail)
        second.accumulate(batch)
        return [before, calls[0]]
    finally:
        comm.send, comm.recv = send, recv


class Late:
    """A transfer that takes place only when somebody waits: what is read before that is poison, what is written shows."""

    def __init__(self, exchange: Any, sends: Any, recvs: Any, axis: Any) -> None:
        self.sends = [(x, x.clone()) for x, _ in sends]
        self.recvs = [(x, torch.empty_like(x)) for x, _ in recvs]
        for x, _ in recvs:
            x.fill_(float("nan"))
        hidden = [(buffer, peer) for (_, buffer), (_, peer) in zip(self.recvs, recvs, strict=True)]
        self.pending = exchange([(copy, peer) for (_, copy), (_, peer) in zip(self.sends, sends, strict=True)], hidden, axis)

    def wait(self) -> list[Tensor]:
        self.pending.wait()
        for x, copy in self.sends:
            assert torch.equal(x, copy), "a sent tensor was written to before its transfer was done"
        for x, buffer in self.recvs:
            with torch.no_grad():
                x.copy_(buffer)
        return [x for x, _ in self.recvs]


def losses_when_transfers_are_late(schedule: Schedule, late: bool) -> list[float]:
    config = GPTConfig(**TINY)
    pipe = Pipeline(GPT(config).double(), schedule, Mesh(pp=schedule.ranks))
    plain = comm.async_exchange
    if late:
        comm.async_exchange = lambda sends, recvs, axis: Late(plain, sends, recvs, axis)
    try:
        losses = []
        for step in range(2):
            losses.append(pipe.step(data.batch(step, 8, config.seq)).item())
            with torch.no_grad():
                for p in pipe.model.parameters():
                    p -= 0.1 * p.grad
        return losses
    finally:
        comm.async_exchange = plain


def squares(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores - targets).pow(2).sum()


def train_sequential(schedule: Schedule, sizes: list[int] | None) -> dict[str, Tensor]:
    """An nn.Sequential of changing widths; gradients by name, with the reference's where the name starts with "whole."."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(3, 7),
        nn.Tanh(),
        nn.Linear(7, 2, bias=False),
        nn.ReLU(),
        nn.Linear(2, 5),
        nn.Softmax(-1),
        nn.Linear(5, 4),
        nn.Linear(4, 1),
    ).double()
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 1, dtype=torch.float64)
    (squares(model(x), y) / 7).backward()
    whole = {f"whole.{name}": p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    pipe = Pipeline(model, schedule, Mesh(pp=schedule.ranks), sizes=sizes, loss_sum=squares)
    pipe.step(Batch(x, y, total=7))
    return whole | {name: p.grad for name, p in pipe.model.named_parameters()}

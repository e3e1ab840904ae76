"""Lesson 4: send each gradient while backward still computes the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course.exercises.exercise import Case, Exercise, Seen, Wrong
from course.exercises.findings import equal
from minipar import comm
from minipar.trace import COMPUTE, tracer

LAYERS, WIDTH = 4, 8
Finish = Callable[[], Any]


def build(case: Case) -> nn.Sequential:
    """The same float64 network on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64) for _ in range(LAYERS)]
        return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def data(case: Case, rank: int) -> Tensor:
    """Other rows on each rank: ``[4, WIDTH]``."""
    generator = torch.Generator().manual_seed(case.seed * 100 + rank)
    return torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)


def trial(answer: Any, case: Case) -> tuple[list[Tensor | None], bool, bool]:
    """The gradients after ``finish()``, whether the weights changed, and whether ``finish`` can be called."""
    axis = comm.world()
    model = build(case)
    before = [p.detach().clone() for p in model.parameters()]
    finish = answer(list(model.parameters()), axis)
    loss = model(data(case, axis.rank)).pow(2).mean()
    with tracer.during("backward"), tracer.span("B"):
        loss.backward()
    if callable(finish):
        finish()
    changed = any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    return [p.grad for p in model.parameters()], changed, callable(finish)


def expected(case: Case) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The mean gradients, and each rank's own: ``[rank][parameter]``."""
    own = []
    for rank in range(case.ranks):
        model = build(case)
        model(data(case, rank)).pow(2).mean().backward()
        own.append([p.grad for p in model.parameters() if p.grad is not None])
    return [torch.stack(same).mean(0) for same in zip(*own, strict=True)], own


def judge(seen: Seen) -> str | None:
    return _finish(seen) or _weights(seen) or _waits(seen) or _gradients(seen) or _launches(seen) or _stops(seen)


def _finish(seen: Seen) -> str | None:
    if not seen.values[0][2]:
        return "your function returned no function: backward runs after it returns, so what must wait comes back as finish()."
    return None


def _weights(seen: Seen) -> str | None:
    rank = next((rank for rank, (_, changed, _) in enumerate(seen.values) if changed), None)
    if rank is None:
        return None
    return f"rank {rank}: the weights themselves were overwritten. The hook is handed the parameter, not its gradient."


def _waits(seen: Seen) -> str | None:
    if seen.calls(0):
        return None
    return "no communication came to its end on rank 0: what is launched must also be waited for."


def _gradients(seen: Seen) -> str | None:
    mean, own = expected(seen.case)
    for rank, (grads, _, _) in enumerate(seen.values):
        for i, (got, want, mine) in enumerate(zip(grads, mean, own[rank], strict=True)):
            where = f"rank {rank}: the gradient of layer {i}"
            if got is None:
                return f"{where} is None after finish()."
            if equal(got, want):
                continue
            if equal(got, want * seen.case.ranks):
                return f"{where} is the sum over the ranks, {seen.case.ranks} times the mean."
            if equal(got, mine):
                return f"{where} is still this rank's own."
            return f"{where} is neither its own nor the mean: was it read before its transfer was done?"
    return None


def launched(seen: Seen, rank: int) -> tuple[int, int]:
    """How many collectives ``rank`` launched before backward ended, and in all."""
    calls = seen.calls(rank)
    return sum(s.phase == "backward" for s in calls), len(calls)


def _launches(seen: Seen) -> str | None:
    for rank in range(seen.case.ranks):
        early, total = launched(seen, rank)
        if early == 0:
            return f"right gradients; rank {rank} launched all {total} after backward: overlap 0 % (counted)."
        if early < 2:
            alone = "its only collective" if total == 1 else f"only one of {total} collectives"
            return f"right gradients; rank {rank} launched {alone} before backward ended (counted): too few."
    return None


def _stops(seen: Seen) -> str | None:
    """A wait inside the hook splits backward's span: each piece but one is a stop."""
    for rank in range(seen.case.ranks):
        stops = sum(s.name == "B" for s in seen.timeline.of(rank, COMPUTE)) - 1
        if stops > 0:
            return f"right gradients, launched in time; rank {rank} waited {stops} times in backward: no overlap (counted)."
    return None


def praise(seen: Seen) -> str:
    early, total = launched(seen, 0)
    return f"gradients are the mean, and {early} of {total} collectives were on their way before backward ended (counted)."


def gradient(param: Tensor) -> Tensor:
    """What backward left in ``param``."""
    assert param.grad is not None
    return param.grad


def reference(params: list[Tensor], axis: Any) -> Finish:
    launched: list[tuple[Tensor, Any]] = []

    def arrived(param: Tensor) -> None:
        launched.append((param, comm.async_all_reduce_(gradient(param), axis)))

    for param in params:
        param.register_post_accumulate_grad_hook(arrived)

    def finish() -> None:
        for param, pending in launched:
            param.grad = pending.wait() / axis.size

    return finish


def _all_after_backward(params: list[Tensor], axis: Any) -> Finish:
    def finish() -> None:
        for param in params:
            param.grad = comm.all_reduce(gradient(param), axis) / axis.size

    return finish


def _waits_in_the_hook(params: list[Tensor], axis: Any) -> Finish:
    def arrived(param: Tensor) -> None:
        param.grad = comm.all_reduce(gradient(param), axis) / axis.size

    for param in params:
        param.register_post_accumulate_grad_hook(arrived)
    return lambda: None


def _averages_the_parameter(params: list[Tensor], axis: Any) -> Finish:
    launched: list[Any] = []

    def arrived(param: Tensor) -> None:
        launched.append(comm.async_all_reduce_(param.data.mul_(0.5), axis))

    for param in params:
        param.register_post_accumulate_grad_hook(arrived)
    return lambda: [pending.wait() for pending in launched]


def _forgets_to_divide(params: list[Tensor], axis: Any) -> Finish:
    launched: list[Any] = []
    for param in params:
        param.register_post_accumulate_grad_hook(lambda p: launched.append(comm.async_all_reduce_(gradient(p), axis)))
    return lambda: [pending.wait() for pending in launched]


def _never_waits(params: list[Tensor], axis: Any) -> Finish:
    def arrived(param: Tensor) -> None:
        comm.async_all_reduce_(gradient(param), axis)

    for param in params:
        param.register_post_accumulate_grad_hook(arrived)
    return lambda: None


def _reads_too_early(params: list[Tensor], axis: Any) -> Finish:
    """Divides a copy that was taken before the transfer was done."""
    launched: list[tuple[Tensor, Tensor, Any]] = []

    def arrived(param: Tensor) -> None:
        copy = gradient(param).clone()
        launched.append((param, copy / axis.size, comm.async_all_reduce_(copy, axis)))

    for param in params:
        param.register_post_accumulate_grad_hook(arrived)

    def finish() -> None:
        for param, early, pending in launched:
            pending.wait()
            param.grad = early

    return finish


def _one_big_one(params: list[Tensor], axis: Any) -> Finish:
    """Launches in backward, but only when the last gradient is there."""
    arrived: list[Tensor] = []
    launched: list[Any] = []

    def hook(param: Tensor) -> None:
        arrived.append(param)
        if len(arrived) == len(params):
            launched.append(comm.async_all_reduce_(torch.cat([gradient(p).flatten() for p in arrived]), axis))

    for param in params:
        param.register_post_accumulate_grad_hook(hook)

    def finish() -> None:
        flat = launched[0].wait() / axis.size
        for param, piece in zip(arrived, flat.split([p.numel() for p in arrived]), strict=True):
            param.grad = piece.view_as(param)

    return finish


def _no_finish(params: list[Tensor], axis: Any) -> None:
    def arrived(param: Tensor) -> None:
        comm.all_reduce_(gradient(param).div_(axis.size), axis)

    for param in params:
        param.register_post_accumulate_grad_hook(arrived)


EXERCISE = Exercise(
    name="overlap",
    lesson=4,
    task="Write attach(params, axis) that returns finish(): average every gradient, launched while backward still runs.",
    takes=("params", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("all after backward", _all_after_backward, "after backward: overlap 0 %"),
        Wrong("waits in the hook", _waits_in_the_hook, "waited 4 times in backward: no overlap"),
        Wrong("averages the parameter", _averages_the_parameter, "the weights themselves were overwritten"),
        Wrong("forgets to divide", _forgets_to_divide, "is the sum over the ranks, 4 times the mean"),
        Wrong("never waits", _never_waits, "no communication came to its end"),
        Wrong("reads too early", _reads_too_early, "neither its own nor the mean"),
        Wrong("one big one", _one_big_one, "launched its only collective before backward ended"),
        Wrong("no finish", _no_finish, "your function returned no function"),
    ),
    hints=(
        "Autograd can tell you when a gradient is ready: `param.register_post_accumulate_grad_hook(fn)` calls `fn(param)`.",
        "In the hook, `comm.async_all_reduce_(param.grad, axis)` starts a transfer and comes back at once. Keep what it returns.",
        "`finish()` is called after backward. Each thing you kept has a `wait()`; only after it may the gradient be touched.",
    ),
    praise=praise,
)

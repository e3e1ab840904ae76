"""Lesson 10: an MLP whose matrices are split over the ranks, by columns, then by rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong, cases
from course.exercises.findings import no_tensor, wrong_value
from minipar import comm
from minipar.comm import twins
from minipar.trace import Span, tracer

ROWS, WIDTH, FFN = 6, 8, 24  # tokens, and the two sizes of the MLP
NAMES = ("x", "up", "down", "bias")


def inputs(case: Case) -> dict[str, Tensor]:
    """The whole MLP, its input and the gradient that reaches its output, the same on every rank; float64."""
    generator = torch.Generator().manual_seed(case.seed)
    shapes = {"x": (ROWS, WIDTH), "up": (FFN, WIDTH), "down": (WIDTH, FFN), "bias": (WIDTH,), "grad": (ROWS, WIDTH)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def piece(whole: dict[str, Tensor], rank: int, n: int) -> dict[str, Tensor]:
    """What one rank holds: its rows of ``up``, its columns of ``down``, all the rest whole."""
    return whole | {"up": whole["up"].chunk(n, 0)[rank].clone(), "down": whole["down"].chunk(n, 1)[rank].clone()}


def trial(answer: Any, case: Case) -> tuple[Any, list[Tensor | None]]:
    """The output, and the gradients of ``NAMES`` (None where none arrived)."""
    axis = comm.world()
    mine = piece(inputs(case), axis.rank, axis.size)
    leaves = [mine[name].requires_grad_() for name in NAMES]
    y = answer(*leaves, axis)
    if isinstance(y, Tensor) and y.requires_grad and y.shape == mine["grad"].shape:
        with tracer.during("backward"):
            (y * mine["grad"]).sum().backward()
        y = y.detach()
    return y, [leaf.grad for leaf in leaves]


def plain(x: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x @ up.T) @ down.T + bias


def judge(seen: Seen) -> str | None:
    whole = inputs(seen.case)
    outputs = [value for value, _ in seen.values]
    return (
        no_tensor(outputs, whole["grad"])
        or wrong_value(outputs, plain(*(whole[name] for name in NAMES)), "the output", _suspects(whole, seen.case.ranks))
        or _gradients(seen, whole)
        or _calls(seen)
    )


def _suspects(whole: dict[str, Tensor], n: int) -> dict[str, list[Tensor]]:
    shares = [plain(*(piece(whole, rank, n)[name] for name in NAMES)) - whole["bias"] for rank in range(n)]
    total = sum(shares, torch.zeros(()))
    return {
        "the output is partial: its own share of the sum over the hidden units.": [share + whole["bias"] for share in shares],
        f"the bias was added {n} times: every rank put it into its share, and the shares were summed.": [total + n * whole["bias"]]
        * n,
    }


def _gradients(seen: Seen, whole: dict[str, Tensor]) -> str | None:
    n = seen.case.ranks
    wanted = [_true_gradients(whole, rank, n) for rank in range(n)]
    own = [_own_gradient_of_x(whole, rank, n) for rank in range(n)]
    missing = "gradient of x wrong: no all-reduce in backward. It holds what this rank's own hidden units say about x."
    for i, name in enumerate(NAMES):
        got = [grads[i] for _, grads in seen.values]
        if any(grad is None for grad in got):
            return (
                f"right output, but no gradient reached {name}: the calls of comm carry plain data, only its twins carry gradients."
            )
        suspects: dict[str, list[Tensor]] = {missing: own} if name == "x" else {}
        suspects[f"gradient of {name} is {n} times too large: the sum was summed again in backward."] = [n * w[i] for w in wanted]
        complaint = wrong_value([g for g in got if g is not None], [w[i] for w in wanted], f"the gradient of {name}", suspects)
        if complaint:
            return f"right output; {complaint}"
    return None


def _true_gradients(whole: dict[str, Tensor], rank: int, n: int) -> list[Tensor]:
    leaves = [whole[name].clone().requires_grad_() for name in NAMES]
    grads = torch.autograd.grad((plain(*leaves) * whole["grad"]).sum(), leaves)
    mine = piece(dict(zip(NAMES, grads, strict=True)), rank, n)
    return [mine[name] for name in NAMES]


def _own_gradient_of_x(whole: dict[str, Tensor], rank: int, n: int) -> Tensor:
    leaves = [piece(whole, rank, n)[name].clone().requires_grad_() for name in NAMES]
    return torch.autograd.grad((plain(*leaves) * whole["grad"]).sum(), leaves[0])[0]


def by_direction(seen: Seen, rank: int) -> tuple[list[Span], list[Span]]:
    """The calls of forward and those of backward."""
    calls = seen.calls(rank)
    return [s for s in calls if s.phase != "backward"], [s for s in calls if s.phase == "backward"]


def _calls(seen: Seen) -> str | None:
    for rank in range(seen.case.ranks):
        for spans, where in zip(by_direction(seen, rank), ("forward", "backward"), strict=True):
            names = [s.name for s in spans]
            if names != ["all_reduce"]:
                return f"right output and gradients; rank {rank} called {', '.join(names)} {where}, where one all_reduce is enough."
    return None


def praise(seen: Seen) -> str:
    forward, backward = by_direction(seen, 0)
    return (
        f"output and all four gradients are those of the whole MLP, with {len(forward)} + {len(backward)} all-reduces of "
        f"{forward[0].nbytes:.0f} bytes each (counted)."
    )


def reference(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, axis: Any) -> Tensor:
    hidden = F.gelu(F.linear(twins.copy(x, axis), up))  # [tokens, ffn / tp]
    return twins.reduce(F.linear(hidden, down), axis) + bias


def _no_copy(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, axis: Any) -> Tensor:
    return twins.reduce(F.linear(F.gelu(F.linear(x, up)), down), axis) + bias


def _bias_in_every_share(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, axis: Any) -> Tensor:
    return twins.reduce(F.linear(F.gelu(F.linear(twins.copy(x, axis), up)), down, bias), axis)


def _partial(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, axis: Any) -> Tensor:
    return F.linear(F.gelu(F.linear(twins.copy(x, axis), up)), down, bias)


def _summed_twice(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, axis: Any) -> Tensor:
    """An all-reduce whose backward is an all-reduce."""
    hidden = F.gelu(F.linear(twins.copy(x, axis), up))
    return twins.copy(twins.reduce(F.linear(hidden, down), axis), axis) + bias


def _plain_data(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(F.linear(F.gelu(F.linear(x, up)), down).detach(), axis) + bias


def _gathers_between(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, axis: Any) -> Tensor:
    hidden = twins.gather(F.gelu(F.linear(twins.copy(x, axis), up)), axis, -1)  # [tokens, ffn]
    return twins.reduce(F.linear(twins.split(hidden, axis, -1), down), axis) + bias


EXERCISE = Exercise(
    name="tensor-parallel-mlp",
    lesson=10,
    task="Each rank holds rows of up and columns of down. Return the output of the whole MLP, with right gradients everywhere.",
    takes=("x", "up", "down", "bias", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("no copy", _no_copy, "gradient of x wrong: no all-reduce in backward"),
        Wrong("bias in every share", _bias_in_every_share, "the bias was added"),
        Wrong("partial", _partial, "the output is partial"),
        Wrong("summed twice", _summed_twice, "the sum was summed again in backward"),
        Wrong("plain data", _plain_data, "the calls of comm carry plain data"),
        Wrong("gathers between", _gathers_between, "rank 0 called all_gather, all_reduce forward"),
    ),
    hints=(
        "The output is right, so look at the way back. x feeds all hidden units; this rank computes some of them. Whose opinion "
        "about x is missing?",
        "Two operations frame the sharded work: one does nothing forward and an all-reduce backward, the other is its mirror.",
        "`twins.copy(x, axis)` goes before `up`. And the bias belongs to the sum, not to the shares.",
    ),
    praise=praise,
    cases=cases(ranks=(4, 3)),
)

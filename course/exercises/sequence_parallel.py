"""Lesson 11: reduce-scatter and all-gather in place of all-reduce, so that norms see a part of the sequence only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong, cases
from course.exercises.findings import no_tensor, wrong_value
from minipar import comm
from minipar.comm import twins
from minipar.trace import tracer

BATCH, SEQ, WIDTH, FFN = 2, 16, 8, 32
SEQ_DIM = 1
WHOLE = BATCH * SEQ * WIDTH * 8  # bytes of the activations of all tokens


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x [batch, seq, width]`` of all tokens, ``up [ffn, width]``, ``down [width, ffn]``, and the output's gradient; float64."""
    generator = torch.Generator().manual_seed(case.seed)
    shapes = ((BATCH, SEQ, WIDTH), (FFN, WIDTH), (WIDTH, FFN), (BATCH, SEQ, WIDTH))
    x, up, down, grad = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return x, up, down, grad


def part(x: Tensor, rank: int, n: int, dim: int = SEQ_DIM) -> Tensor:
    return x.chunk(n, dim)[rank].clone()


def trial(answer: Any, case: Case) -> tuple[Any, Tensor | None, int]:
    """This rank's output, the gradient of its ``x``, and the bytes that forward kept for backward."""
    axis = comm.world()
    x, up, down, grad = inputs(case)
    mine = part(x, axis.rank, axis.size).requires_grad_()
    weights = (part(up, axis.rank, axis.size, 0).requires_grad_(), part(down, axis.rank, axis.size, 1).requires_grad_())
    y, kept = kept_for_backward(answer, mine, *weights, axis)
    if isinstance(y, Tensor) and y.requires_grad and y.shape == mine.shape:
        with tracer.during("backward"):
            (y * part(grad, axis.rank, axis.size)).sum().backward()
        y = y.detach()
    return y, mine.grad, kept


def kept_for_backward(answer: Any, *args: Any) -> tuple[Any, int]:
    """What ``answer(*args)`` returns, and the bytes that autograd then holds, without those of the arguments."""
    held: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        held.append(x.detach())
        return held[-1]

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y = answer(*args)
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
    known = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
    return y, sum(size for where, size in sizes.items() if where not in known)


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(norm(x), up)), down)


def _layer(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + mlp(x, up, down)


def judge(seen: Seen) -> str | None:
    n = seen.case.ranks
    x, up, down, _ = inputs(seen.case)
    whole = (x + mlp(x, up, down)).chunk(n, SEQ_DIM)
    outputs = [y for y, _, _ in seen.values]
    return (
        no_tensor(outputs, whole[0])
        or wrong_value(outputs, whole, "the output", _suspects(x, up, down, n))
        or _gradient(seen)
        or _costs(seen)
    )


def _suspects(x: Tensor, up: Tensor, down: Tensor, n: int) -> dict[str, list[Tensor]]:
    weights = [(part(up, r, n, 0), part(down, r, n, 1)) for r in range(n)]
    pieces = [part(x, r, n) for r in range(n)]
    mixed = sum((mlp(piece, *own) for piece, own in zip(pieces, weights, strict=True)), torch.zeros(()))
    return {
        "tokens of different ranks were added up: each rank put only its own tokens through its hidden units.": [
            piece + mixed for piece in pieces
        ],
        f"the residual x is counted {n} times: every rank added it to its share before the sum.": list(
            (n * x + mlp(x, up, down)).chunk(n, SEQ_DIM)
        ),
    }


def _gradient(seen: Seen) -> str | None:
    """The gradient of each rank's tokens, with what two known mistakes would give."""
    n = seen.case.ranks
    x, up, down, grad = inputs(seen.case)

    def of_x(output: Callable[[Tensor], Tensor], rank: int) -> Tensor:
        leaf = x.clone().requires_grad_()
        return part(torch.autograd.grad((output(leaf) * grad).sum(), leaf)[0], rank, n)

    got = [g for _, g, _ in seen.values]
    if any(g is None for g in got):
        return "right output, but no gradient reached x: the calls of comm carry plain data, only its twins carry gradients."
    shares = [(part(up, r, n, 0), part(down, r, n, 1)) for r in range(n)]
    own = [of_x(partial(_layer, up=a, down=b), r) for r, (a, b) in enumerate(shares)]
    suspects = {
        "the gradient of x holds what this rank's own hidden units say: gathering for sharded work needs a sum in backward.": own,
        "the gradient of x came over the residual only: the calls of comm carry plain data, its twins carry gradients.": [
            part(grad, r, n) for r in range(n)
        ],
    }
    wanted = [of_x(partial(_layer, up=up, down=down), r) for r in range(n)]
    complaint = wrong_value([g for g in got if g is not None], wanted, "the gradient of x", suspects)
    return complaint and f"right output; {complaint}"


def directions(seen: Seen, rank: int) -> tuple[float, float]:
    """Bytes sent forward and backward."""
    calls = seen.calls(rank)
    back = sum(s.nbytes for s in calls if s.phase == "backward")
    return sum(s.nbytes for s in calls) - back, back


def least_kept(n: int) -> int:
    """Bytes to keep: the gathered norm, the hidden units before and after GELU, and two numbers a token."""
    hidden, statistics = BATCH * SEQ * FFN * 8 // n, BATCH * SEQ * 2 * 8 // n
    return WHOLE + 2 * hidden + statistics


def kept_before(n: int) -> int:
    """The same with all tokens on every rank: the layer's input and its statistics are whole as well."""
    return least_kept(n) + WHOLE + BATCH * SEQ * 2 * 8 * (n - 1) // n


def _costs(seen: Seen) -> str | None:
    n = seen.case.ranks
    enough, room = comm.wire_bytes("all_reduce", WHOLE, n), least_kept(n)
    for rank, (_, _, kept) in enumerate(seen.values):
        forward, backward = directions(seen, rank)
        rows = _table([("one all-reduce each way", enough, enough, kept_before(n)), ("yours", forward, backward, kept)])
        if max(forward, backward) > enough * (1 + 1e-9):
            said = f"rank {rank} sent {forward / enough:.1f}x forward and {backward / enough:.1f}x backward"
            return f"right values; {said} of what one all-reduce takes (counted).\n{rows}"
        if kept > room + WHOLE // n:
            return f"right values and an all-reduce's bytes; but rank {rank} still keeps the norm of all tokens (counted).\n{rows}"
    return None


def _table(rows: list[tuple[str, float, float, float]]) -> str:
    lines = [f"{'bytes':24}{'sent forward':>14}{'backward':>10}{'kept':>8}"]
    return "\n".join(lines + [f"{name:24}{a:14.0f}{b:10.0f}{c:8.0f}" for name, a, b, c in rows])


def praise(seen: Seen) -> str:
    forward, backward = directions(seen, 0)
    n, kept = seen.case.ranks, seen.values[0][2]
    return (
        f"the same {forward:.0f} + {backward:.0f} bytes as an all-reduce each way, and {kept:.0f} bytes kept instead of "
        f"{kept_before(n):.0f} (counted)."
    )


def reference(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    whole = twins.gather_for_sharded(norm(x), axis, 1)  # [batch, seq, width]
    hidden = F.gelu(F.linear(whole, up))  # [batch, seq, ffn / tp]
    return x + twins.reduce_scatter(F.linear(hidden, down), axis, 1)


def _all_reduce_as_before(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    whole = twins.gather(x, axis, 1)
    shared = F.linear(F.gelu(F.linear(twins.copy(norm(whole), axis), up)), down)
    return twins.split(whole + twins.reduce(shared, axis), axis, 1)


def _reduces_then_splits(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    whole = twins.gather_for_sharded(norm(x), axis, 1)
    return x + twins.split(twins.reduce(F.linear(F.gelu(F.linear(whole, up)), down), axis), axis, 1)


def _norm_of_all_tokens(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    whole = norm(twins.gather_for_sharded(x, axis, 1))
    return x + twins.reduce_scatter(F.linear(F.gelu(F.linear(whole, up)), down), axis, 1)


def _gathers_for_repeated_work(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    whole = twins.gather(norm(x), axis, 1)
    return x + twins.reduce_scatter(F.linear(F.gelu(F.linear(whole, up)), down), axis, 1)


def _residual_in_every_share(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    whole = twins.gather_for_sharded(x, axis, 1)
    return twins.reduce_scatter(whole + F.linear(F.gelu(F.linear(norm(whole), up)), down), axis, 1)


def _own_tokens_only(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    return x + twins.reduce(mlp(x, up, down), axis)


def _plain_data(x: Tensor, up: Tensor, down: Tensor, axis: Any) -> Tensor:
    whole = comm.all_gather(norm(x).detach(), axis, 1)
    return x + comm.reduce_scatter(F.linear(F.gelu(F.linear(whole, up)), down).detach(), axis, 1)


EXERCISE = Exercise(
    name="sequence-parallel",
    lesson=11,
    task="x holds this rank's tokens. Return x + MLP(norm(x)) for them, with an all-reduce's bytes and no norm of all tokens.",
    takes=("x", "up", "down", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("all-reduce as before", _all_reduce_as_before, "1.5x forward and 1.5x backward"),
        Wrong("reduces, then splits", _reduces_then_splits, "1.5x forward and 1.0x backward"),
        Wrong("norm of all tokens", _norm_of_all_tokens, "still keeps the norm of all tokens"),
        Wrong("gathers for repeated work", _gathers_for_repeated_work, "gathering for sharded work needs a sum in backward"),
        Wrong("residual in every share", _residual_in_every_share, "the residual x is counted"),
        Wrong("own tokens only", _own_tokens_only, "tokens of different ranks were added up"),
        Wrong("plain data", _plain_data, "came over the residual only"),
    ),
    hints=(
        "An all-reduce is a reduce-scatter followed by an all-gather. What could a rank do between the two, on its own tokens?",
        "Norm and residual need one token at a time: do them before the tokens meet and after they part.",
        "`twins.gather_for_sharded(norm, axis, 1)` goes in front of `up`; its backward is a reduce-scatter. `down` leaves a "
        "partial sum, and `twins.reduce_scatter(partial, axis, 1)` gives each rank its tokens of it.",
    ),
    praise=praise,
    cases=cases(ranks=(4, 2)),
)

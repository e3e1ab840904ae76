"""Lesson 1: all-reduce on a ring, from messages alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong
from course.exercises.findings import changed_input, equal, no_tensor, wrong_value
from minipar import comm

PIECE = 5  # elements in each of the n pieces
MESSAGES = ("send", "recv")


def inputs(case: Case) -> list[Tensor]:
    """``[n * PIECE]`` float64 on each of n ranks."""
    generator = torch.Generator().manual_seed(case.seed)
    return list(torch.randn(case.ranks, case.ranks * PIECE, generator=generator, dtype=torch.float64))


def trial(answer: Any, case: Case) -> tuple[Any, bool]:
    axis = comm.world()
    mine = inputs(case)[axis.rank]
    x = mine.clone()
    value = answer(x, axis)
    return value, not torch.equal(x, mine)


def judge(seen: Seen) -> str | None:
    xs = inputs(seen.case)
    values = [value for value, _ in seen.values]
    total = torch.stack(xs).sum(0)
    return (
        no_tensor(values, xs[0])
        or _one_piece(seen, values, total)
        or wrong_value(values, total, "the sum", {"it still holds its own data: nothing was added.": xs})
        or changed_input(seen, [changed for _, changed in seen.values])
        or _only_messages(seen)
        or _bytes(seen)
    )


def _one_piece(seen: Seen, values: list[Tensor], total: Tensor) -> str | None:
    """Each rank has exactly one piece of the sum: the reduce-scatter half is right and the all-gather half is not."""
    n = len(values)
    right = [[c for c in range(n) if equal(v.chunk(n)[c], total.chunk(n)[c])] for v in values]
    if any(len(pieces) != 1 for pieces in right):
        return None
    said = f"rank 0 holds the sum in piece {right[0][0]} alone, and every rank in one piece only:"
    if len(seen.calls(0, "send")) < n:
        return f"{said} the finished pieces never went round."
    return f"{said} on the second lap a finished piece was changed where it should be kept as it comes."


def _only_messages(seen: Seen) -> str | None:
    used = {s.name for rank in range(seen.case.ranks) for s in seen.calls(rank)} - set(MESSAGES)
    if used:
        return f"right sum, but {' and '.join(sorted(used))} did it: this one is to be built from messages, send and receive."
    if not any(seen.calls(rank) for rank in range(seen.case.ranks)):
        return "the sum is right, but no call of minipar.comm was seen: use comm, which counts what is sent."
    return None


def bound(case: Case) -> float:
    """Bytes that each rank of a ring sends: 2(n-1)/n of its data."""
    return comm.wire_bytes("all_reduce", case.ranks * PIECE * 8, case.ranks)


def _bytes(seen: Seen) -> str | None:
    sent = [seen.sent(rank) / bound(seen.case) for rank in range(seen.case.ranks)]
    worst = max(range(seen.case.ranks), key=sent.__getitem__)
    if sent[worst] <= 1 + 1e-9:
        return None
    said = f"right sum; rank {worst} sent {sent[worst]:.1f}x the ring bound (counted)"
    if min(sent) < 1:
        idlest = sent.index(min(sent))
        return f"{said}, rank {idlest} only {sent[idlest]:.1f}x: the work piles up on one rank."
    biggest = max(s.nbytes for s in seen.calls(worst, "send"))
    if biggest >= seen.case.ranks * PIECE * 8:
        return f"{said}, and so did all others: whole tensors went round, not pieces."
    return f"{said}."


def praise(seen: Seen) -> str:
    n, data = seen.case.ranks, seen.case.ranks * PIECE * 8
    times, peak = seen.sent(0) / data, max(seen.peaks) / data
    return (
        f"equal to the sum; every rank sent {times:.2f}x its data, which is 2(n-1)/n for n = {n}, and held {peak:.1f}x (counted)."
    )


def reference(x: Tensor, axis: Any) -> Tensor:
    pieces = list(x.clone().chunk(axis.size))
    right, left = (axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size
    for step in range(2 * (axis.size - 1)):
        outgoing, incoming = (axis.rank - step) % axis.size, (axis.rank - step - 1) % axis.size
        got = comm.exchange([(pieces[outgoing], right)], [(torch.empty_like(pieces[0]), left)], axis)[0]
        pieces[incoming] = pieces[incoming] + got if step < axis.size - 1 else got
    return torch.cat(pieces)


def _everything_to_rank_0(x: Tensor, axis: Any) -> Tensor:
    if axis.rank == 0:
        total = x + sum(comm.recv(x, source, axis) for source in range(1, axis.size))
        for to in range(1, axis.size):
            comm.send(total, to, axis)
        return total
    comm.send(x, 0, axis)
    return comm.recv(x, 0, axis)


def _whole_tensors(x: Tensor, axis: Any) -> Tensor:
    right, left = (axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size
    total, passing = x.clone(), x
    for _ in range(axis.size - 1):
        passing = comm.exchange([(passing, right)], [(torch.empty_like(x), left)], axis)[0]
        total = total + passing
    return total


def _one_lap_only(x: Tensor, axis: Any) -> Tensor:
    pieces = list(x.clone().chunk(axis.size))
    right, left = (axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size
    for step in range(axis.size - 1):
        outgoing, incoming = (axis.rank - step) % axis.size, (axis.rank - step - 1) % axis.size
        got = comm.exchange([(pieces[outgoing], right)], [(torch.empty_like(pieces[0]), left)], axis)[0]
        pieces[incoming] = pieces[incoming] + got
    return torch.cat(pieces)


def _adds_on_both_laps(x: Tensor, axis: Any) -> Tensor:
    pieces = list(x.clone().chunk(axis.size))
    right, left = (axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size
    for step in range(2 * (axis.size - 1)):
        outgoing, incoming = (axis.rank - step) % axis.size, (axis.rank - step - 1) % axis.size
        got = comm.exchange([(pieces[outgoing], right)], [(torch.empty_like(pieces[0]), left)], axis)[0]
        pieces[incoming] = pieces[incoming] + got
    return torch.cat(pieces)


def _ready_made(x: Tensor, axis: Any) -> Tensor:
    return comm.all_reduce(x, axis)


def _everyone_waits(x: Tensor, axis: Any) -> Tensor:
    got = comm.recv(x, (axis.rank - 1) % axis.size, axis)
    comm.send(x, (axis.rank + 1) % axis.size, axis)
    return x + got


def _never_ends(x: Tensor, axis: Any) -> Tensor:
    while True:
        x = x + 0


EXERCISE = Exercise(
    name="ring-all-reduce",
    lesson=1,
    task="Write all_reduce(x, axis) from messages, so that no rank sends more than 2(n-1)/n of its data.",
    takes=("x", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("everything to rank 0", _everything_to_rank_0, "right sum; rank 0 sent 2.0x the ring bound (counted), rank 1 only"),
        Wrong("whole tensors on the ring", _whole_tensors, "whole tensors went round, not pieces"),
        Wrong("one lap", _one_lap_only, "the finished pieces never went round"),
        Wrong("adds on both laps", _adds_on_both_laps, "on the second lap a finished piece was changed"),
        Wrong("ready made", _ready_made, "right sum, but all_reduce did it"),
        Wrong("everyone waits first", _everyone_waits, "rank 0 waits in irecv"),
        Wrong("never ends", _never_ends, "your function did not end"),
    ),
    hints=(
        "Cut `x` into as many pieces as there are ranks: `x.chunk(axis.size)`. In each step a rank sends one piece to the right.",
        "On the first lap a rank adds what arrives to its own piece, and passes that one on in the next step. After n - 1 steps "
        "each rank owns one finished piece.",
        "The second lap is the same walk, but what arrives replaces the piece. In step s rank r sends piece (r - s) mod n.",
        "`comm.exchange([(piece, right)], [(empty, left)], axis)` sends and receives at once: nobody waits for a rank that waits.",
    ),
    praise=praise,
)

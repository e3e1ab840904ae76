"""Lesson 12: tokens to the ranks of their experts and back, none lost and none doubled."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong, cases
from course.exercises.findings import no_tensor, wrong_value
from course.exercises.lost_tokens import lost_or_doubled
from minipar import comm

WIDTH = 6  # numbers a token; number 0 is its id, 100 times its rank and its place there
ROW = 8 * WIDTH  # bytes


class Choices(NamedTuple):
    """The setting: to how many experts each token goes."""

    k: int

    def __str__(self) -> str:
        return f"top {self.k}"


class Share(NamedTuple):
    """What one rank starts with."""

    x: Tensor  # [T, WIDTH]
    expert: Tensor  # [T, k]
    weight: Tensor  # [T, k]


def inputs(case: Case) -> list[Share]:
    """By rank; ranks hold different numbers of tokens, and expert 1 is in great demand. float64."""
    generator = torch.Generator().manual_seed(case.seed)
    shares = []
    for rank in range(case.ranks):
        tokens = 5 + 2 * rank
        x = torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64)
        x[:, 0] = 100 * rank + torch.arange(tokens)
        wish = torch.rand(tokens, case.ranks, generator=generator, dtype=torch.float64)
        wish[:, 1] += 0.5
        weight, expert = wish.topk(case.setting.k)
        shares.append(Share(x, expert, weight / weight.sum(1, keepdim=True)))
    return shares


def run_expert(rows: Tensor, expert: int) -> Tensor:
    """An expert that can be told from the others: ``[rows, WIDTH]`` to the same."""
    return rows * (expert + 2) + torch.arange(WIDTH, dtype=rows.dtype)


def trial(answer: Any, case: Case) -> tuple[Any, list[float]]:
    """The output, and the ids that this rank's expert was given."""
    axis = comm.world()
    x, expert, weight = (t.clone() for t in inputs(case)[axis.rank])
    given: list[float] = []

    def my_expert(rows: Tensor) -> Tensor:
        given.extend(rows[:, 0].tolist())
        return run_expert(rows, axis.rank)

    return answer(x, expert, weight, my_expert, axis), given


def judge(seen: Seen) -> str | None:
    shares = inputs(seen.case)
    outputs = [y for y, _ in seen.values]
    for rank, (y, share) in enumerate(zip(outputs, shares, strict=True)):
        complaint = no_tensor([y], share.x)
        if complaint:
            return complaint.replace("rank 0", f"rank {rank}", 1)
    return (
        _unknown([ids for _, ids in seen.values], shares)
        or _lost_or_doubled([ids for _, ids in seen.values], shares)
        or wrong_value(outputs, [whole(share) for share in shares], "the output", _suspects(shares))
        or _bytes(seen, shares)
    )


def _unknown(given: list[list[float]], shares: list[Share]) -> str | None:
    known = {i for share in shares for i in share.x[:, 0].tolist()}
    for expert, ids in enumerate(given):
        strange = [i for i in ids if i not in known]
        if strange:
            return f"expert {expert} was given {len(strange)} rows that are nobody's token: tokens travel as they are."
    return None


def _lost_or_doubled(given: list[list[float]], shares: list[Share]) -> str | None:
    experts = range(len(given))
    wanted = [Counter(i for s in shares for i in s.x[(s.expert == e).any(1), 0].tolist()) for e in experts]
    later = [{i for s in shares for i in s.x[(s.expert[:, 1:] == e).any(1), 0].tolist()} for e in experts]
    return lost_or_doubled(given, wanted, later)


def whole(share: Share) -> Tensor:
    """What one process with all experts computes."""
    back, token, order = home(share)
    return torch.zeros_like(share.x).index_add_(0, token, back * share.weight.flatten()[order, None])


def home(share: Share) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs in the experts' order, the token of each, and the order: what a right dispatch brings home."""
    order, token = _sorted_copies(share.x, share.expert)
    pairs = zip(share.x[token], share.expert.flatten()[order].tolist(), strict=True)
    return torch.stack([run_expert(row[None], expert)[0] for row, expert in pairs]), token, order


def _suspects(shares: list[Share]) -> dict[str, list[Tensor]]:
    return {cause: [combine(torch.zeros_like(s.x), s.weight, *home(s)) for s in shares] for cause, combine in MIXED_UP.items()}


def _as_if_by_token(out: Tensor, weight: Tensor, back: Tensor, token: Tensor, order: Tensor) -> Tensor:
    return (back.view(*weight.shape, WIDTH) * weight[..., None]).sum(1)


def _overwritten(out: Tensor, weight: Tensor, back: Tensor, token: Tensor, order: Tensor) -> Tensor:
    out[token] = back * weight.flatten()[order, None]
    return out


def _unweighted(out: Tensor, weight: Tensor, back: Tensor, token: Tensor, order: Tensor) -> Tensor:
    return out.index_add(0, token, back)


def _others_weights(out: Tensor, weight: Tensor, back: Tensor, token: Tensor, order: Tensor) -> Tensor:
    return out.index_add(0, token, back * weight.flatten()[:, None])


MIXED_UP = {  # what is said about a combine that goes wrong, and that combine
    "every copy reached its expert, but outputs came back to other tokens: they return in the order they left in.": _as_if_by_token,
    "of a token's outputs only one is left: the others were overwritten, not added.": _overwritten,
    "its tokens' outputs were added up without their weights.": _unweighted,
    "outputs came home, but each with another copy's weight: the weights lie in order of the tokens.": _others_weights,
}


def _bytes(seen: Seen, shares: list[Share]) -> str | None:
    """What leaves for experts elsewhere, and what comes back from here; counts are small beside it."""
    for rank in range(seen.case.ranks):
        enough, sent = least(rank, shares), seen.sent(rank)
        if sent > 1.5 * enough:
            names = " and ".join(dict.fromkeys(s.name for s in seen.calls(rank)))
            return f"right output; rank {rank} sent {sent / enough:.1f}x the rows that must travel (counted), by {names}."
    return None


def least(rank: int, shares: list[Share]) -> int:
    """Bytes: each copy that leaves crosses once, and its output once back."""
    leaving = int((shares[rank].expert != rank).sum())
    arriving = sum(int((s.expert == rank).sum()) for r, s in enumerate(shares) if r != rank)
    return ROW * (leaving + arriving)


def praise(seen: Seen) -> str:
    copies = sum(len(ids) for _, ids in seen.values)
    rows = sum(least(rank, inputs(seen.case)) for rank in range(seen.case.ranks)) // ROW
    return f"{copies} copies reached their experts once and came home; {rows} rows crossed between ranks, there and back (counted)."


def _sorted_copies(x: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
    """The order that sorts the copies by expert, and the token of each."""
    order = expert.flatten().argsort(stable=True)
    return order, order // expert.shape[1]


def _counts(expert: Tensor, axis: Any) -> tuple[list[int], list[int]]:
    send = torch.bincount(expert.flatten(), minlength=axis.size)
    return send.tolist(), comm.all_to_all(send, axis).tolist()


def reference(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
    order = expert.flatten().argsort(stable=True)  # copies, by expert
    token = order // expert.shape[1]
    send = torch.bincount(expert.flatten(), minlength=axis.size)
    recv = comm.all_to_all(send, axis)
    rows = comm.all_to_all(x[token], axis, send.tolist(), recv.tolist())
    back = comm.all_to_all(my_expert(rows), axis, recv.tolist(), send.tolist())
    return torch.zeros_like(x).index_add(0, token, back * weight.flatten()[order, None])


def _not_sorted(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
    k = expert.shape[1]
    send, recv = _counts(expert, axis)
    rows = comm.all_to_all(x.repeat_interleave(k, 0), axis, send, recv)
    back = comm.all_to_all(my_expert(rows), axis, recv, send)
    return (back * weight.flatten()[:, None]).view(len(x), k, -1).sum(1)


def _first_choice_only(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
    return reference(x, expert[:, :1], weight[:, :1], my_expert, axis)


def _equal_shares(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
    """Room for as many rows as an even spread has; what is beyond stays at home."""
    room = expert.numel() // axis.size
    order, token = _sorted_copies(x, expert)
    place = torch.cat([torch.arange(n) for n in torch.bincount(expert.flatten(), minlength=axis.size).tolist()])
    order, token = order[place < room], token[place < room]
    send, recv = _counts(expert.flatten()[order], axis)
    back = comm.all_to_all(my_expert(comm.all_to_all(x[token], axis, send, recv)), axis, recv, send)
    return torch.zeros_like(x).index_add(0, token, back * weight.flatten()[order, None])


def _padded_with_token_0(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
    """As many rows to every expert; what is missing is filled by an index of 0."""
    order, token = _sorted_copies(x, expert)
    counts = torch.bincount(expert.flatten(), minlength=axis.size).tolist()
    most = int(comm.all_reduce(torch.tensor([max(counts)]), axis, op="max"))
    index, share = torch.zeros(axis.size, most, dtype=torch.int64), torch.zeros(axis.size, most, dtype=x.dtype)
    parts = zip(token.split(counts), weight.flatten()[order].split(counts), strict=True)
    for e, (tokens, weights) in enumerate(parts):
        index[e, : len(tokens)], share[e, : len(tokens)] = tokens, weights
    back = comm.all_to_all(my_expert(comm.all_to_all(x[index.flatten()], axis)), axis)
    return torch.zeros_like(x).index_add(0, index.flatten(), back * share.flatten()[:, None])


def _weighted_first(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
    order, token = _sorted_copies(x, expert)
    send, recv = _counts(expert, axis)
    rows = comm.all_to_all(x[token] * weight.flatten()[order, None], axis, send, recv)
    back = comm.all_to_all(my_expert(rows), axis, recv, send)
    return torch.zeros_like(x).index_add(0, token, back)


def _everything_everywhere(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
    n, tokens = axis.size, [len(x)] * axis.size
    recv = comm.all_gather(torch.tensor([len(x)]), axis).tolist()
    rows = comm.all_to_all(x.repeat(n, 1), axis, tokens, recv)
    mine = (comm.all_to_all(expert.repeat(n, 1), axis, tokens, recv) == axis.rank).any(1)
    outputs = torch.zeros_like(rows)
    outputs[mine] = my_expert(rows[mine])
    back = comm.all_to_all(outputs, axis, recv, tokens).view(n, len(x), -1)  # [experts, T, width]
    share = torch.zeros(len(x), n, dtype=x.dtype).scatter(1, expert, weight)  # [T, experts]
    return torch.einsum("te,etw->tw", share, back)


def _combined_by(combine: Any) -> Any:
    """An answer that is right until the outputs are home."""

    def answer(x: Tensor, expert: Tensor, weight: Tensor, my_expert: Any, axis: Any) -> Tensor:
        order, token = _sorted_copies(x, expert)
        send, recv = _counts(expert, axis)
        back = comm.all_to_all(my_expert(comm.all_to_all(x[token], axis, send, recv)), axis, recv, send)
        return combine(torch.zeros_like(x), weight, back, token, order)

    return answer


EXERCISE = Exercise(
    name="dispatch-and-combine",
    lesson=12,
    task="Rank r holds expert r. Take this rank's tokens to the experts they chose; return each token's weighted sum of outputs.",
    takes=("x", "expert", "weight", "my_expert", "axis"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("not sorted", _not_sorted, "In which order did they leave?"),
        Wrong("first choice only", _first_choice_only, "every token reached its first choice, and none its second"),
        Wrong("equal shares", _equal_shares, "no expert is ever full here"),
        Wrong("padded with token 0", _padded_with_token_0, "is there padding among the rows?"),
        Wrong("weighted first", _weighted_first, "rows that are nobody's token"),
        Wrong("as if by token", _combined_by(_as_if_by_token), "outputs came back to other tokens"),
        Wrong("overwritten", _combined_by(_overwritten), "the others were overwritten, not added"),
        Wrong("unweighted", _combined_by(_unweighted), "added up without their weights"),
        Wrong("others' weights", _combined_by(_others_weights), "each with another copy's weight"),
        Wrong("everything everywhere", _everything_everywhere, "x the rows that must travel (counted)"),
    ),
    hints=(
        "An all-to-all cuts your rows into pieces, one for each rank, in order of rank. Which order must the copies be in?",
        "`expert.flatten().argsort(stable=True)` sorts the copies by expert; copy i belongs to token `i // k`. Nobody knows yet "
        "how many rows are coming: the counts travel first, in an all-to-all of their own.",
        "The way home swaps the counts: send as many as came, receive as many as left. The outputs then lie as the copies left: "
        "sorted by expert. `index_add` brings each to its token, `weight.flatten()[order]` says what it counts.",
    ),
    praise=praise,
    cases=cases(ranks=(4, 3), settings=(Choices(2), Choices(1))),
)

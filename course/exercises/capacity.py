"""Lesson 12: which copies find room in an expert of limited capacity, and which are dropped."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course.exercises.exercise import Case, Exercise, Seen, Wrong, cases


class Layer(NamedTuple):
    """The setting: a batch of tokens, and how much room their experts have."""

    tokens: int
    experts: int
    k: int
    factor: float

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.experts} experts, top {self.k}, factor {self.factor:g}"


def inputs(case: Case) -> Tensor:
    """``[T, k]``: the experts each token chose, its first choice first. Expert 0 is everybody's favourite."""
    s: Layer = case.setting
    wish = torch.rand(s.tokens, s.experts, generator=torch.Generator().manual_seed(case.seed))
    wish[:, 0] += 0.4
    return wish.topk(s.k).indices


def trial(answer: Any, case: Case) -> Any:
    return answer(inputs(case), case.setting.experts, case.setting.factor)


def judge(seen: Seen) -> str | None:
    kept, setting, expert = seen.values[0], seen.case.setting, inputs(seen.case)
    if not isinstance(kept, Tensor) or kept.dtype != torch.bool or kept.shape != expert.shape:
        what = f"{kept.dtype} {list(kept.shape)}" if isinstance(kept, Tensor) else type(kept).__name__
        return f"your function returned {what}; return a bool tensor {list(expert.shape)}, true for each copy that is kept."
    if torch.equal(kept, reference(expert, setting.experts, setting.factor)):
        return None
    for cause, wrong in SUSPECTS.items():
        if torch.equal(kept, wrong(expert, setting.experts, setting.factor)):
            return f"{cause} {_where(kept, expert, setting)}"
    return _where(kept, expert, setting)


def _where(kept: Tensor, expert: Tensor, s: Layer) -> str:
    """The first expert that keeps too many or too few, else the first copy that should have gone the other way."""
    room = capacity(s)
    for e in range(s.experts):
        asked, has = int((expert == e).sum()), int(((expert == e) & kept).sum())
        if has != min(room, asked):
            return f"Expert {e} is asked for {asked} copies, has room for {room}, and keeps {has} (counted)."
    differs = kept != reference(expert, s.experts, s.factor)
    token, choice = differs.nonzero()[0].tolist()
    word = "kept" if kept[token, choice] else "dropped"
    return f"Token {token}'s choice {choice + 1} is {word}: the numbers are right, but others came before it or after it."


def capacity(s: Layer) -> int:
    return math.ceil(s.factor * s.tokens * s.k / s.experts)


def praise(seen: Seen) -> str:
    kept = seen.values[0]
    return f"{int((~kept).sum())} of {kept.numel()} copies are dropped, the same ones as the library drops (counted)."


def places(queue: Tensor) -> Tensor:
    """``[copies]`` experts, in order of their arrival, to each copy's place at its expert, from 0."""
    asked = F.one_hot(queue)  # [copies, experts]
    return (asked.cumsum(0) * asked).sum(1) - 1


def reference(expert: Tensor, experts: int, factor: float) -> Tensor:
    tokens, k = expert.shape
    room = math.ceil(factor * tokens * k / experts)
    queue = expert.T.flatten()  # all first choices in order of the tokens, then all second choices
    return (places(queue) < room).view(k, tokens).T


def _token_by_token(expert: Tensor, experts: int, factor: float) -> Tensor:
    room = math.ceil(factor * expert.numel() / experts)
    return (places(expert.flatten()) < room).view_as(expert)


def _without_k(expert: Tensor, experts: int, factor: float) -> Tensor:
    tokens, k = expert.shape
    return (places(expert.T.flatten()) < math.ceil(factor * tokens / experts)).view(k, tokens).T


def _rounded_down(expert: Tensor, experts: int, factor: float) -> Tensor:
    tokens, k = expert.shape
    return (places(expert.T.flatten()) < math.floor(factor * tokens * k / experts)).view(k, tokens).T


def _one_too_many(expert: Tensor, experts: int, factor: float) -> Tensor:
    tokens, k = expert.shape
    return (places(expert.T.flatten()) <= math.ceil(factor * tokens * k / experts)).view(k, tokens).T


def _whole_tokens(expert: Tensor, experts: int, factor: float) -> Tensor:
    return reference(expert, experts, factor).all(1, keepdim=True).expand_as(expert).clone()


def _the_dropped(expert: Tensor, experts: int, factor: float) -> Tensor:
    return ~reference(expert, experts, factor)


def _the_last(expert: Tensor, experts: int, factor: float) -> Tensor:
    return reference(expert.flip(0), experts, factor).flip(0)


def _everyone(expert: Tensor, experts: int, factor: float) -> Tensor:
    return torch.ones_like(expert, dtype=torch.bool)


SUSPECTS = {
    "second choices took places before first choices: all first choices queue up before any second one.": _token_by_token,
    "an expert has room for its share of the copies, and a token makes k of them.": _without_k,
    "capacity was rounded down, here it is rounded up.": _rounded_down,
    "every full expert keeps one too many: places count from 0.": _one_too_many,
    "a token that lost one copy lost all: its other experts still have room for it.": _whole_tokens,
    "true marks the dropped copies, and should mark the kept ones.": _the_dropped,
    "the last tokens were kept, and the first were turned away.": _the_last,
    "nothing was dropped.": _everyone,
}


EXERCISE = Exercise(
    name="capacity",
    lesson=12,
    task="Mark the copies that experts keep: ceil(factor * tokens * k / experts) each, first choices first, then token by token.",
    takes=("expert", "experts", "factor"),
    trial=trial,
    judge=judge,
    reference=reference,
    wrong=(
        Wrong("token by token", _token_by_token, "second choices took places before first choices"),
        Wrong("without k", _without_k, "a token makes k of them"),
        Wrong("rounded down", _rounded_down, "capacity was rounded down"),
        Wrong("one too many", _one_too_many, "keeps one too many"),
        Wrong("whole tokens", _whole_tokens, "lost one copy lost all"),
        Wrong("the dropped ones", _the_dropped, "true marks the dropped copies"),
        Wrong("the last ones", _the_last, "the last tokens were kept"),
        Wrong("everyone", _everyone, "nothing was dropped"),
    ),
    hints=(
        "Line the copies up in order of arrival first: one long queue, before you look at any expert.",
        "`expert.T.flatten()` is that queue. A copy's place at its expert is the number of earlier copies for the same expert.",
        "With `asked = F.one_hot(queue)`, `asked.cumsum(0)` counts for each expert how many have come so far, this one included.",
    ),
    praise=praise,
    cases=cases(ranks=(1,), settings=(Layer(10, 4, 2, 1.25), Layer(13, 3, 2, 1.0), Layer(16, 4, 3, 0.5))),
)

"""The router: which experts each token goes to, and with what weight.

    tokens [T, width] -> logits [T, E] -> scores [T, E] -> the k best experts of each token and their weights

Scores are softmax probabilities (Shazeer et al. 2017; Fedus et al. 2021) or sigmoids with a bias that steers the selection but not
the weights (DeepSeek-V3, 2024). In expert choice (Zhou et al. 2022) it is the experts that pick their favourite tokens: every token
offers itself to all of them, and the capacity (``capacity.py``) lets each keep the best.

A token's route depends on that token alone, and a tie goes to the expert with the lower number: so routes do not change with the
order of the tokens or the number of ranks. The logits are computed in float32 at least, whatever the model's precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipar.expert_parallel.options import MoEOptions


@dataclass(frozen=True)
class Routing:
    """One entry for each copy of a token that goes to an expert, in order of the tokens."""

    token: Tensor  # [copies], int64, ascending
    expert: Tensor  # [copies], int64
    weight: Tensor  # [copies], what the expert's output counts
    choice: Tensor  # [copies], int64: 0 for a token's first choice
    probs: Tensor  # [T, E], adding up to 1 for each token
    logits: Tensor  # [T, E]

    @property
    def tokens(self) -> int:
        return self.logits.shape[0]

    @property
    def counts(self) -> Tensor:
        """``[E]``: the copies that each expert gets."""
        return torch.bincount(self.expert, minlength=self.logits.shape[1])

    def keep(self, mask: Tensor) -> Routing:
        """Only the copies where ``mask`` ([copies], bool) is true."""
        return Routing(self.token[mask], self.expert[mask], self.weight[mask], self.choice[mask], self.probs, self.logits)


def top_k(scores: Tensor, k: int) -> Tensor:
    """``[T, E]`` scores to the ``[T, k]`` experts with the highest, best first; of equals, the lower number.

    torch.topk leaves ties open, and low precision makes ties common: the same token could go to different experts on two ranks.
    """
    left, picks = scores.detach().clone(), []
    for _ in range(k):
        best = left.max(dim=1, keepdim=True).indices  # the first of several maxima
        picks.append(best)
        left.scatter_(1, best, float("-inf"))
    return torch.cat(picks, dim=1)


def softmax_router(logits: Tensor, k: int, softmax: str = "before", renormalise: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """``[T, E]`` logits to experts ``[T, k]``, weights ``[T, k]`` and probabilities ``[T, E]``.

    ``softmax="after"`` is over the selected logits only (Mixtral); it equals "before" with the weights renormalised. With k = 1
    both give a weight of exactly 1, through which the router learns nothing: Switch keeps the probability itself.
    """
    probs = logits.softmax(dim=1)
    experts = top_k(logits, k)
    if softmax == "after":
        return experts, logits.gather(1, experts).softmax(dim=1), probs
    weights = probs.gather(1, experts)
    return experts, weights / weights.sum(dim=1, keepdim=True) if renormalise else weights, probs


def sigmoid_router(logits: Tensor, bias: Tensor, k: int, renormalise: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Like ``softmax_router``, with sigmoid scores; ``bias`` [E] is added for the selection alone (DeepSeek-V3)."""
    scores = logits.sigmoid()
    experts = top_k(scores + bias, k)
    weights = scores.gather(1, experts)
    weights = weights / weights.sum(dim=1, keepdim=True) if renormalise else weights
    return experts, weights, scores / scores.sum(dim=1, keepdim=True)


class Router(nn.Module):
    """``[T, width]`` tokens to their ``Routing``. Its matrix, one row an expert, is the same on every rank."""

    bias: Tensor

    def __init__(self, width: int, experts: int, k: int, options: MoEOptions) -> None:
        super().__init__()
        if not 1 <= k <= experts:
            raise ValueError(f"each token goes to top_k = {k} of {experts} experts: choose 1 to {experts}")
        if options.router == "switch" and k != 1:
            raise ValueError(f"the Switch router sends each token to one expert: set top_k=1, not {k}")
        self.k, self.options = k, options
        self.weight = nn.Parameter(0.02 * torch.randn(experts, width))
        if options.router == "noisy":
            self.noise = nn.Parameter(torch.zeros(experts, width))
        if options.router == "sigmoid":
            self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x: Tensor, where: str = "") -> Routing:
        """``where`` names the layer, step and rank in the complaint about logits that are not numbers."""
        logits = self._logits(x)
        _refuse_bad_logits(logits, where)
        if self.options.router == "expert-choice":
            return _everyone_everywhere(logits)
        experts, weights, probs = self._select(logits)
        tokens, k = experts.shape
        token = torch.arange(tokens, device=x.device).repeat_interleave(k)
        choice = torch.arange(k, device=x.device).repeat(tokens)
        return Routing(token, experts.flatten(), weights.flatten(), choice, probs, logits)

    def _logits(self, x: Tensor) -> Tensor:
        precise = torch.promote_types(x.dtype, torch.float32)
        x = x.to(precise)
        logits = F.linear(x, self.weight.to(precise))  # [T, E]
        if self.options.router == "noisy" and self.training:  # drawn anew on each rank, as its tokens are others
            logits = logits + torch.randn_like(logits) * F.softplus(F.linear(x, self.noise.to(precise)))
        return logits

    def _select(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        options = self.options
        renormalise = self.k > 1 if options.renormalise is None else options.renormalise
        if options.router == "sigmoid":
            return sigmoid_router(logits, self.bias, self.k, renormalise)
        if options.router == "switch":
            return softmax_router(logits, 1, renormalise=False)
        return softmax_router(logits, self.k, options.softmax, renormalise)


def _everyone_everywhere(logits: Tensor) -> Routing:
    """Expert choice begins with a copy of every token for every expert."""
    probs = logits.softmax(dim=1)
    tokens, experts = logits.shape
    token = torch.arange(tokens, device=logits.device).repeat_interleave(experts)
    expert = torch.arange(experts, device=logits.device).repeat(tokens)
    return Routing(token, expert, probs.flatten(), torch.zeros_like(expert), probs, logits)


def _refuse_bad_logits(logits: Tensor, where: str) -> None:
    finite = torch.isfinite(logits.detach()).all(dim=1)
    if not finite.all():
        first = int((~finite).nonzero()[0])
        raise FloatingPointError(
            f"router logits {where or 'of this layer'} are not finite numbers: {int((~finite).sum())} of {len(finite)} tokens, "
            f"first token {first}. Look for an overflow before this layer, or a learning rate too high"
        )

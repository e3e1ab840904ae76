"""The two ends of the model, split by the vocabulary: looking tokens up, and the loss over scores that no rank holds in full.

Gathering the scores would cost ``batch * seq * vocab`` numbers; the loss needs three numbers per token from each rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipar import comm
from minipar.comm import twins
from minipar.data import IGNORE
from minipar.mesh import Axis
from minipar.model import Embedding, Head
from minipar.tensor_parallel.linear import ColumnParallelLinear
from minipar.tensor_parallel.region import SEQ, Region
from minipar.tensor_parallel.shares import also_sum_over, cut, shares


class VocabParallelTokens(nn.Module):
    """``[batch, seq]`` tokens to partial vectors ``[batch, seq, width]``: zero for the tokens that another rank knows."""

    def __init__(self, whole: nn.Embedding, axis: Axis) -> None:
        super().__init__()
        sizes = shares(whole.num_embeddings, axis, "tokens of the vocabulary")
        self.start = sum(sizes[: axis.rank])
        self.weight = cut(whole.weight, axis, 0, sizes)  # [vocab / tp, width]

    def forward(self, tokens: Tensor) -> Tensor:
        rows, mine = own_rows(tokens, self.start, self.weight.shape[0])
        return F.embedding(rows, self.weight) * mine.unsqueeze(-1)


class TensorParallelEmbedding(nn.Module):
    """``[batch, seq]`` tokens to ``[batch, seq, width]``, or ``[batch, seq / tp, width]`` with sequence parallelism."""

    def __init__(self, whole: Embedding, region: Region, dropout: nn.Module) -> None:
        super().__init__()
        self.region = region
        self.tokens = VocabParallelTokens(whole.tokens, region.axis)
        self.positions = whole.positions
        self.dropout = dropout
        if region.sequence_parallel:
            also_sum_over(self.positions.weight, region.axis)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[SEQ], device=tokens.device)  # [seq]
        self.region.refuse_uneven(tokens.shape[SEQ])
        x = self.region.leave(self.tokens(tokens))
        if self.region.sequence_parallel:
            positions = positions.chunk(self.region.axis.size)[self.region.axis.rank]  # those of this rank's tokens
        return self.dropout(x + self.positions(positions))


class TensorParallelHead(nn.Module):
    """``[batch, seq, width]`` to the scores of this rank's part of the vocabulary, ``[batch, seq, vocab / tp]``."""

    def __init__(self, whole: Head, region: Region) -> None:
        super().__init__()
        self.norm = whole.norm
        self.output = ColumnParallelLinear(whole.output, region)
        self.axis, self.vocab = region.axis, whole.output.out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(x))

    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        return vocab_parallel_loss_sum(logits, targets, self.axis, self.vocab)


def vocab_parallel_loss_sum(
    logits: Tensor, targets: Tensor, axis: Axis, vocab: int | None = None, label_smoothing: float = 0.0, ignore: int = IGNORE
) -> Tensor:
    """Cross-entropy summed over the tokens whose target is not ``ignore``, from each rank's scores of its part of the vocabulary.

    ``logits`` is ``[..., vocab / tp]``, ``targets`` ``[...]`` holds tokens of the whole vocabulary of ``vocab`` (left out: equal
    parts). The same scalar on every rank. Computed in float32 or better, and safe for any finite scores: the greatest score of
    *all* ranks is taken off first.
    """
    vocab = vocab or logits.shape[-1] * axis.size
    sizes = shares(vocab, axis, "tokens of the vocabulary")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    greatest = comm.all_reduce(logits.detach().amax(-1), axis, "max")  # [...]
    shifted = logits - greatest.unsqueeze(-1)
    rows, mine = own_rows(targets, sum(sizes[: axis.rank]), sizes[axis.rank])
    own_score = shifted.gather(-1, rows.unsqueeze(-1)).squeeze(-1) * mine  # zero where another rank holds the target
    mine_only = torch.stack([shifted.exp().sum(-1), own_score, shifted.sum(-1)])  # [3, ...], partial
    sum_exp, score, sum_scores = twins.reduce(mine_only, axis)
    log_sum = sum_exp.log()
    loss = (1 - label_smoothing) * (log_sum - score) + label_smoothing * (log_sum - sum_scores / vocab)
    return loss.masked_fill(targets == ignore, 0.0).sum()


def own_rows(tokens: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """For each token its row in this rank's part of the vocabulary (row 0 for a stranger), and whether it is in there."""
    rows = tokens - start
    mine = (rows >= 0) & (rows < count)
    return rows.masked_fill(~mine, 0), mine

"""GPT: the small reference model that every way of splitting must reproduce.

Pre-norm blocks, causal attention, a GELU MLP (or a mixture of experts), learned positions, a tied or untied head. The layers form
a plain sequence, ``[embedding, block, ..., block, head]``, so that a pipeline can cut between any two of them; queries, keys,
values and output are separate matrices, so that tensor parallelism can cut each by heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipar.checks import not_number, not_whole, refuse
from minipar.data import IGNORE, Batch

if TYPE_CHECKING:
    from minipar.expert_parallel.options import MoEOptions


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. ``kv_heads < heads`` shares keys and values among groups of heads; ``experts > 0`` makes it a MoE."""

    layers: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int = 0  # 0: as many as heads
    ffn: int = 0  # hidden width of the MLP; 0: 4 * width
    vocab: int = 256  # bytes
    seq: int = 64  # the longest sequence
    tied: bool = False  # the head's matrix is the token embedding
    dropout: float = 0.0
    experts: int = 0  # per MoE layer; 0: every MLP is dense
    top_k: int = 2  # experts per token
    moe: MoEOptions | None = None  # how tokens are routed and balanced; None: the defaults

    def __post_init__(self) -> None:
        for name, default in (("kv_heads", self.heads), ("ffn", 4 * self.width)):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, default)
        sizes = ("layers", "width", "heads", "kv_heads", "ffn", "vocab", "seq", "top_k")
        refuse(*(not_whole(f"GPTConfig.{name}", getattr(self, name)) for name in sizes))
        refuse(not_whole("GPTConfig.experts", self.experts, 0), not_number("GPTConfig.dropout", self.dropout, 0))
        if self.dropout > 1:
            raise ValueError(f"GPTConfig.dropout is a share, at most 1, and is {self.dropout}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide into groups that share {self.kv_heads} keys and values")
        if self.experts and not 1 <= self.top_k <= self.experts:
            raise ValueError(f"each token goes to top_k = {self.top_k} of {self.experts} experts: choose 1 to {self.experts}")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class Embedding(nn.Module):
    """Tokens and positions to vectors: ``[batch, seq]`` to ``[batch, seq, width]``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.seq, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.limits = config.vocab, config.seq

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)  # [seq]
        try:
            return self.dropout(self.tokens(tokens) + self.positions(positions))  # [batch, seq, width]
        except IndexError as e:
            most, (vocab, seq) = (int(tokens.max()), int(positions.max())), self.limits
            raise ValueError(
                f"tokens up to {most[0]} at places up to {most[1]} do not fit GPTConfig(vocab={vocab}, seq={seq}): "
                "both count from 0, and the text here is bytes, which need a vocabulary of 256"
            ) from e


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention in which each token sees itself and what came before.

    ``q`` is ``[batch, heads, seq, head_dim]``, and so is the result; ``k`` and ``v`` may have fewer heads, each shared by a group.
    """
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])


class Attention(nn.Module):
    """Causal self-attention, ``[batch, seq, width]`` to the same. ``core`` is the product itself, to be replaced by other kinds."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q = nn.Linear(config.width, config.heads * config.head_dim)
        self.k = nn.Linear(config.width, config.kv_heads * config.head_dim)
        self.v = nn.Linear(config.width, config.kv_heads * config.head_dim)
        self.o = nn.Linear(config.heads * config.head_dim, config.width)
        self.core: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(proj(x)) for proj in (self.q, self.k, self.v))  # [batch, heads, seq, head_dim]
        out = self.core(q, k, v)
        return self.o(out.transpose(1, 2).flatten(2))  # [batch, seq, width]

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    """``[..., width]`` to the same by way of ``ffn``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn)
        self.down = nn.Linear(config.ffn, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """One transformer layer: each half is added to what comes in. ``[batch, seq, width]`` to the same."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = _mlp(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Head(nn.Module):
    """Vectors to one score per token of the vocabulary: ``[batch, seq, width]`` to ``[batch, seq, vocab]``.

    ``loss_sum`` is the loss that fits its scores, to be replaced where a rank holds the scores of a part of the vocabulary.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.vocab, bias=False)
        self.loss_sum: Callable[[Tensor, Tensor], Tensor] = loss_sum

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(x))


class GPT(nn.Module):
    """The whole model. The same ``seed`` gives the same parameters on every rank and for every split."""

    def __init__(self, config: GPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = Embedding(config)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.head = Head(config)
            _initialise(self)
        if config.tied:
            self.head.output.weight = self.embedding.tokens.weight

    def layers(self) -> list[nn.Module]:
        """Embedding, blocks and head, in order: what a pipeline may cut between."""
        return [self.embedding, *self.blocks, self.head]

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """``[batch, seq]`` tokens to ``[batch, seq, vocab]`` logits."""
        x = self.embedding(tokens, positions)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def loss(self, batch: Batch) -> Tensor:
        """This batch's share of the mean loss over the *global* batch: summed over its tokens, divided by the global count."""
        return self.head.loss_sum(self(batch.inputs, batch.positions), batch.targets) / batch.total


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over the tokens whose target is not ``IGNORE``. ``[..., vocab]`` and ``[...]`` to a scalar.

    A sum, not a mean: ranks and microbatches hold unequal numbers of tokens, and a mean of their means is another number.
    """
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def _mlp(config: GPTConfig) -> nn.Module:
    if not config.experts:
        return MLP(config)
    from minipar.expert_parallel import MoE  # the one-process layer; imported here because most models are dense

    return MoE(config)


def _initialise(model: GPT) -> None:
    """GPT-2's way: normal with deviation 0.02, smaller where a layer writes to the residual stream (Radford et al. 2019)."""
    residual = 0.02 / math.sqrt(2 * model.config.layers)
    for name, param in model.named_parameters():
        if param.dim() >= 2:
            nn.init.normal_(param, std=residual if ".o." in name or ".down" in name else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(param)

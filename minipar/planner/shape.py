"""The shape of a transformer, and what follows from the shape alone: parameters and flops.

A multiply and an add are two flops. Attention is counted over all pairs of tokens, as the field reports it, even where a causal
kernel skips half of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from minipar.checks import not_above_zero, not_number, not_one_of, not_whole, refuse
from minipar.model import GPTConfig

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Transformer:
    """A decoder. ``kv_heads`` and ``ffn`` of 0 mean as many as heads and four times the width.

    ``gated`` MLPs have three matrices (SwiGLU), plain ones two; ``biases`` are those of GPT-2: everywhere but in the head.
    ``experts`` of 0 is a dense model; otherwise each token goes to ``top_k`` of them.
    """

    layers: int
    width: int
    heads: int
    vocab: int
    seq: int
    kv_heads: int = 0
    ffn: int = 0
    gated: bool = False
    biases: bool = True
    learned_positions: bool = True
    tied: bool = True
    experts: int = 0
    top_k: int = 1

    def __post_init__(self) -> None:
        sizes = ("layers", "width", "heads", "vocab", "seq", "top_k")
        refuse(*(not_whole(f"Transformer.{name}", getattr(self, name)) for name in sizes))
        refuse(*(not_whole(f"Transformer.{name}", getattr(self, name), 0) for name in ("kv_heads", "ffn", "experts")))
        for name, default in (("kv_heads", self.heads), ("ffn", 4 * self.width)):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, default)
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide into groups that share {self.kv_heads} keys and values")
        if self.experts and self.top_k > self.experts:
            raise ValueError(f"each token goes to top_k = {self.top_k} of {self.experts} experts: choose 1 to {self.experts}")

    @classmethod
    def of(cls, config: GPTConfig) -> Transformer:
        """The shape of a ``minipar.GPT``."""
        if not isinstance(config, GPTConfig):
            raise TypeError(f"Transformer.of takes a GPTConfig, not {config!r}")
        return cls(
            config.layers, config.width, config.heads, config.vocab, config.seq, config.kv_heads, config.ffn,
            tied=config.tied, experts=config.experts, top_k=config.top_k,
        )  # fmt: skip

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * self.kv_heads

    @property
    def attention_params(self) -> int:
        matrices = 2 * self.width * (self.width + self.kv_width)
        return matrices + (2 * self.width + 2 * self.kv_width if self.biases else 0)

    @property
    def mlp_params(self) -> int:
        """Of one MLP; a mixture has one such for each expert."""
        ups = 2 if self.gated else 1
        return (ups + 1) * self.width * self.ffn + (ups * self.ffn + self.width if self.biases else 0)

    @property
    def norm_params(self) -> int:
        """Of one normalisation: a weight and, with biases, a bias."""
        return self.width * (2 if self.biases else 1)

    @property
    def router_params(self) -> int:
        return self.width * self.experts

    @property
    def layer_params(self) -> int:
        return self.attention_params + 2 * self.norm_params + self.router_params + max(1, self.experts) * self.mlp_params

    @property
    def embedding_params(self) -> int:
        return self.width * (self.vocab + (self.seq if self.learned_positions else 0))

    @property
    def head_params(self) -> int:
        """Of the last norm and, where it is not the embedding again, the head's matrix."""
        return self.norm_params + (0 if self.tied else self.width * self.vocab)

    @property
    def params(self) -> int:
        return self.embedding_params + self.layers * self.layer_params + self.head_params

    def matmul_flops(self, tokens: float) -> float:
        """Forward flops of one layer's weight matrices: two for each weight a token meets."""
        mlps = self.top_k if self.experts else 1
        attention = 2 * self.width * (self.width + self.kv_width)
        mlp = (3 if self.gated else 2) * self.width * self.ffn
        return 2 * tokens * (attention + mlps * mlp + self.router_params)

    def attention_flops(self, tokens: float) -> float:
        """Forward flops of one layer's scores and their product with the values: ``4 * seq * width`` a token."""
        return 4 * tokens * self.seq * self.width

    def head_flops(self, tokens: float) -> float:
        """Forward flops of the scores over the vocabulary."""
        return 2 * tokens * self.width * self.vocab

    def model_flops(self, tokens: float) -> float:
        """Flops that one step on ``tokens`` tokens needs: a forward and a backward of twice as many (Chowdhery et al. 2022)."""
        return 3 * self._forward(tokens)

    def hardware_flops(self, tokens: float, recompute: str = "none") -> float:
        """Flops done as the field counts them: recomputing adds a forward of all ("full") or doubles attention ("selective").

        The latter is equation 8 of Korthikanti et al. 2022, behind their published HFU. One more forward of attention would be a
        third of it; the clock charges only that.
        """
        refuse(not_one_of("recompute", recompute, RECOMPUTE))
        again = {"none": 0.0, "selective": 3 * self.attention_flops(tokens), "full": self._layer(tokens)}
        return self.model_flops(tokens) + self.layers * again[recompute]

    def _layer(self, tokens: float) -> float:
        return self.matmul_flops(tokens) + self.attention_flops(tokens)

    def _forward(self, tokens: float) -> float:
        return self.layers * self._layer(tokens) + self.head_flops(tokens)


def utilisation(flops: float, seconds: float, ranks: int, peak_flops: float) -> float:
    """The share of the devices' peak: of model flops it is MFU, of hardware flops HFU."""
    refuse(not_number("flops", flops, 0), not_above_zero("seconds", seconds), not_above_zero("peak_flops", peak_flops))
    refuse(not_whole("ranks", ranks))
    return flops / seconds / ranks / peak_flops


def training_days(params: float, tokens: float, ranks: int, flops_per_rank: float) -> float:
    """Days to train on ``tokens`` with full recomputation: ``8 T P / (n X)`` (Narayanan et al. 2021, equation 4)."""
    refuse(not_number("params", params, 0), not_number("tokens", tokens, 0), not_whole("ranks", ranks))
    refuse(not_above_zero("flops_per_rank", flops_per_rank))
    return 8 * tokens * params / (ranks * flops_per_rank) / 86_400

"""One way to split a training step over the ranks, and the reasons why it may be impossible."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod

from minipar.checks import not_one_of, not_whole
from minipar.planner.shape import RECOMPUTE, Transformer


@dataclass(frozen=True)
class Split:
    """Sizes of the axes, and how the batch is fed. ``batch`` is the global batch in sequences, ``microbatch`` that of one rank.

    ``zero`` shards over ``dp``: 1 the optimizer's state, 2 the gradients as well, 3 the weights as well.
    """

    batch: int
    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    microbatch: int = 1
    chunks: int = 1  # model chunks per pipeline rank
    sequence_parallel: bool = True
    recompute: str = "none"
    zero: int = 0
    fused_attention: bool = True  # scores are never written to memory (Dao et al. 2022)

    @property
    def ranks(self) -> int:
        return self.dp * self.pp * self.cp * self.tp

    @property
    def microbatches(self) -> int:
        """Per rank and step."""
        return self.batch // (self.dp * self.microbatch)

    def refusal(self, model: Transformer) -> str | None:
        """Why this split cannot run ``model``, in a sentence; None if it can."""
        sizes = ("batch", "dp", "pp", "cp", "tp", "ep", "microbatch", "chunks")
        if not isinstance(model, Transformer):
            return f"a plan is made for a planner.Transformer, not for {model!r}: Transformer.of(config) is that of a GPTConfig"
        reasons = (reason for name in sizes if (reason := not_whole(name, getattr(self, name))))
        bad = next(reasons, None) or not_one_of("recompute", self.recompute, RECOMPUTE) or not_whole("zero", self.zero, 0)
        if bad is not None:
            return bad
        tokens_over, stage = self.cp * self.tp, self.dp * self.cp * self.tp
        rules = [
            (self.batch % (self.dp * self.microbatch),
             f"a batch of {self.batch} sequences does not divide into dp {self.dp} x microbatches of {self.microbatch}"),
            (model.heads % self.tp, f"{model.heads} heads do not divide over tp {self.tp}"),
            (model.kv_heads % self.tp, f"{model.kv_heads} key-value heads do not divide over tp {self.tp}"),
            (model.ffn % self.tp, f"an MLP of {model.ffn} does not divide over tp {self.tp}"),
            (model.seq % tokens_over, f"{model.seq} tokens do not divide over cp {self.cp} x tp {self.tp}"),
            (self.pp * self.chunks > model.layers, f"{model.layers} layers are too few for pp {self.pp} x {self.chunks} chunks"),
            (self.chunks > 1 and self.pp == 1, "several chunks per rank need a pipeline: pp is 1"),
            (self.ep > 1 and not model.experts, f"ep {self.ep} splits experts, and this model has none"),
            (model.experts % self.ep, f"{model.experts} experts do not divide over ep {self.ep}"),
            (stage % self.ep, f"ep {self.ep} does not divide dp x cp x tp = {stage}"),
            (self.zero > 3, "zero is 0, 1, 2 or 3"),
        ]  # fmt: skip
        return next((sentence for broken, sentence in rules if broken), None)

    def __str__(self) -> str:
        axes = [f"{name} {size}" for name in ("dp", "pp", "cp", "tp", "ep") if (size := getattr(self, name)) > 1]
        return " x ".join(axes or ["one rank"])

    def layers_on(self, stage: int, model: Transformer) -> int:
        """Layers of the ``stage``-th of ``pp`` ranks: as equal as can be, the first ranks taking one more."""
        return model.layers // self.pp + (stage < model.layers % self.pp)


def divisors(n: int) -> list[int]:
    """In order; each one up to the root of ``n`` brings its partner above it."""
    low = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return low + [n // d for d in reversed(low) if d * d < n]


def splits_of(ranks: int, parts: int) -> list[tuple[int, ...]]:
    """All ways to write ``ranks`` as an ordered product of ``parts`` sizes."""
    if parts == 1:
        return [(ranks,)]
    found = [(first, *rest) for first in divisors(ranks) for rest in splits_of(ranks // first, parts - 1)]
    assert all(prod(sizes) == ranks for sizes in found)
    return found

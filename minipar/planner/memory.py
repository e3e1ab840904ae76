"""Bytes on the fullest rank of a split, by kind.

Weights and gradients in 2 bytes, Adam's float32 master weights and two moments in 12 (Rajbhandari et al. 2020); activations as
Korthikanti et al. 2022 count them, tensor by tensor, for 16-bit training.
"""

from __future__ import annotations

from dataclasses import dataclass

from minipar.planner.shape import Transformer
from minipar.planner.split import Split


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank."""

    params: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return self.params + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class BytesPerParam:
    """What one parameter costs in each kind of memory."""

    params: float = 2
    gradients: float = 2
    optimizer: float = 12

    def sharded(self, zero: int, dp: int) -> BytesPerParam:
        """ZeRO: stage 1 spreads the optimizer's state over ``dp`` ranks, stage 2 gradients too, stage 3 weights too."""
        return BytesPerParam(
            self.params / (dp if zero >= 3 else 1),
            self.gradients / (dp if zero >= 2 else 1),
            self.optimizer / (dp if zero >= 1 else 1),
        )


MIXED_ADAM = BytesPerParam()
FULL_ADAM = BytesPerParam(4, 4, 8)  # everything in float32, as on a CPU
PLAIN_SGD = BytesPerParam(4, 4, 0)


def rank_params(model: Transformer, split: Split, stage: int = 0) -> float:
    """Parameters on one rank of the given pipeline stage.

    Norms, routers and the biases that are added after a sum over ``tp`` are whole on every rank; experts are split over ``ep`` and
    whole within it; on a pipeline's last stage a head tied to the embedding is a copy of its own.
    """
    t, bias = split.tp, model.width if model.biases else 0
    attention = (model.attention_params - bias) / t + bias
    experts = model.experts * model.mlp_params / split.ep
    mlp = experts if model.experts else (model.mlp_params - bias) / t + bias
    layers = split.layers_on(stage, model) * (attention + mlp + 2 * model.norm_params + model.router_params)
    table = model.vocab * model.width / t
    positions = model.seq * model.width if model.learned_positions else 0
    first = table + positions if stage == 0 else 0
    own_head = not model.tied or split.pp > 1
    last = model.norm_params + (table if own_head else 0) if stage == split.pp - 1 else 0
    return layers + first + last


def layer_activations(model: Transformer, split: Split) -> float:
    """Bytes that one layer keeps for the backward of one microbatch, on one rank, in 16-bit training with dropout.

    Without recomputation these are ``s b h (10 + 24/t + 5 a s / (h t))``, and ``34/t`` in place of ``10 + 24/t`` where the sequence
    is split too (Korthikanti et al. 2022, table 2); here for any MLP and any number of key-value heads.
    """
    t, h = split.tp, model.width
    sb = model.seq / split.cp * split.microbatch  # tokens of a microbatch on one rank
    if split.recompute == "full":
        return 2 * sb * h / (t if split.sequence_parallel else 1)
    around = 10 * sb * h  # both norms' inputs 4, the inputs of attention and MLP 4, two dropout masks 2
    attention = sb * (2 * h + 4 * model.kv_width + 2 * h)  # queries, keys and values, the output matrix's input
    mlps = model.top_k if model.experts else 1
    mlp = sb * mlps * (6 if model.gated else 4) * model.ffn
    scores = 5 * model.heads * model.seq * sb  # softmax 2, its dropout mask 1 and output 2, for every pair of tokens
    kept = 0 if split.recompute == "selective" or split.fused_attention else scores
    return around / (t if split.sequence_parallel else 1) + (attention + mlp + kept) / t


def held_layers(model: Transformer, split: Split) -> float:
    """Layer activations that the first stage holds at its peak, under 1F1B or (``chunks > 1``) its interleaved form.

    1F1B holds ``min(pp, m)`` microbatches of ``layers / pp`` layers; interleaving adds the share ``(p-1)/(p v)``.
    """
    in_flight = min(split.pp, split.microbatches)
    layers = split.layers_on(0, model) * in_flight
    return layers * (1 + (split.pp - 1) / (split.pp * split.chunks)) if split.chunks > 1 else layers


def memory(model: Transformer, split: Split, cost: BytesPerParam = MIXED_ADAM) -> Memory:
    """Bytes on the fullest rank: the first stage, which holds the most activations, or the last, if that is heavier."""
    per = cost.sharded(split.zero, split.dp)
    params = max(rank_params(model, split, 0), rank_params(model, split, split.pp - 1))
    activations = held_layers(model, split) * layer_activations(model, split)
    return Memory(per.params * params, per.gradients * params, per.optimizer * params, activations)

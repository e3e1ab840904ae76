"""Put a whole GPT on the ranks of one axis."""

from __future__ import annotations

from torch import nn

from minipar.mesh import Axis
from minipar.model import GPT, MLP, Block
from minipar.tensor_parallel.dropout import ShardedDropout
from minipar.tensor_parallel.layers import TensorParallelAttention, TensorParallelMLP
from minipar.tensor_parallel.region import Region
from minipar.tensor_parallel.shares import also_sum_over
from minipar.tensor_parallel.vocabulary import TensorParallelEmbedding, TensorParallelHead


def parallelize(model: GPT, axis: Axis, sequence_parallel: bool = False, overlap: bool = True, regather: bool = False) -> GPT:
    """Split ``model``, a full copy on every rank, over ``axis`` in place, and return it. Parameters keep their names.

    Afterwards the model takes whole token sequences and gives each rank the scores of its part of the vocabulary;
    ``model.loss`` is the same number on every rank. Experts are left to ``minipar.expert_parallel``.

    ``sequence_parallel`` splits norms, dropout and residual stream along the sequence, which must divide by the ranks.
    ``overlap`` and ``regather``: see ``Region``.
    """
    region = Region(axis, sequence_parallel, overlap, regather)
    p = model.config.dropout
    tied = model.head.output.weight is model.embedding.tokens.weight
    model.embedding = TensorParallelEmbedding(model.embedding, region, _dropout(p, region))  # type: ignore[assignment]
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention = TensorParallelAttention(block.attention, region)  # type: ignore[assignment]
        if isinstance(block.mlp, MLP):
            block.mlp = TensorParallelMLP(block.mlp, region)
        block.dropout = _dropout(p, region)  # type: ignore[assignment]
    model.head = TensorParallelHead(model.head, region)  # type: ignore[assignment]
    if tied:
        model.head.output.weight = model.embedding.tokens.weight
    if sequence_parallel:
        _sum_over_tokens(model, axis)
    return model


def _dropout(p: float, region: Region) -> nn.Module:
    return ShardedDropout(p, region.axis) if region.sequence_parallel else nn.Dropout(p)


def _sum_over_tokens(model: GPT, axis: Axis) -> None:
    """Norms work on this rank's tokens only: their gradients would stay partial if nobody summed them."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            for param in module.parameters():
                also_sum_over(param, axis)

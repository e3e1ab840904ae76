"""Tensor parallelism: several ranks share every matrix product; sequence parallelism shares what lies between them.

Read in this order: ``region`` (the idea), ``linear``, ``layers``, ``vocabulary``, ``dropout``, ``model``.
"""

from minipar.tensor_parallel.dropout import ShardedDropout, seed_ranks
from minipar.tensor_parallel.layers import TensorParallelAttention, TensorParallelMLP
from minipar.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear, column_products
from minipar.tensor_parallel.model import parallelize
from minipar.tensor_parallel.region import Region
from minipar.tensor_parallel.vocabulary import (
    TensorParallelEmbedding,
    TensorParallelHead,
    VocabParallelTokens,
    vocab_parallel_loss_sum,
)

__all__ = [
    "ColumnParallelLinear",
    "Region",
    "RowParallelLinear",
    "ShardedDropout",
    "TensorParallelAttention",
    "TensorParallelEmbedding",
    "TensorParallelHead",
    "TensorParallelMLP",
    "VocabParallelTokens",
    "column_products",
    "parallelize",
    "seed_ranks",
    "vocab_parallel_loss_sum",
]

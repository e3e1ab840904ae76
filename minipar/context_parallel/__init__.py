"""Context parallelism: a sequence too long for one rank, cut over several; every token still attends to all before it.

Read in this order: ``softmax`` (parts of an attention), ``ring``, ``layout`` (zigzag), ``ulysses``, ``attention``, ``model``,
``predicted``.
"""

from minipar.choices import METHODS
from minipar.context_parallel.attention import ContextAttention
from minipar.context_parallel.layout import TokenLayout
from minipar.context_parallel.model import cut, pad, parallelize
from minipar.context_parallel.ring import Ring, ring_attention
from minipar.context_parallel.softmax import Part, attend, attend_backward, merge
from minipar.context_parallel.ulysses import heads_from_sequence, sequence_from_heads

__all__ = [
    "METHODS",
    "ContextAttention",
    "Part",
    "Ring",
    "TokenLayout",
    "attend",
    "attend_backward",
    "cut",
    "heads_from_sequence",
    "merge",
    "pad",
    "parallelize",
    "ring_attention",
    "sequence_from_heads",
]

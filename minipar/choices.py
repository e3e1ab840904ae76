"""What a command line offers, by name or unless told otherwise: by itself, so that it can answer before torch is loaded."""

from __future__ import annotations

METHODS = ("ring", "zigzag", "ulysses")  # of context parallelism
OPTIMIZERS = ("adamw", "sgd")
BUCKET_BYTES = 25 * 2**20  # as in PyTorch DDP: fewer calls; a small model wants less, to have something to overlap

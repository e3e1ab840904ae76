"""The part of a layer in which every rank does its own share, and the two borders of that part.

Megatron-LM (Shoeybi et al. 2019) splits the two matrix products of an MLP so that nothing needs to be sent in between:

        x ----> [ columns of A ] -> gelu -> [ rows of B ] ----> y = sum over ranks
    replicated       sharded               sharded   partial    replicated
          enter                                      leave

Sequence parallelism (Korthikanti et al. 2022) cuts what lies outside, too: norms, dropout and the residual stream work on
``seq / tp`` tokens each. Then entering is an all-gather and leaving a reduce-scatter, which together move the bytes of one
all-reduce, and no activation is held twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from minipar.comm import twins
from minipar.mesh import Axis

SEQ = 1  # activations are [batch, seq, width]


@dataclass(frozen=True)
class Region:
    """Work shared among the ranks of ``axis``; all tensors that come in and go out are ``[batch, seq, width]``."""

    axis: Axis
    sequence_parallel: bool = False  # outside, [batch, seq / tp, width]
    overlap: bool = True  # send the input's gradient while computing the weights' (see linear.py)
    regather: bool = False  # sequence parallel: keep only seq / tp tokens for the backward pass, and gather them once more there

    def __post_init__(self) -> None:
        if self.regather and not (self.sequence_parallel and self.overlap):
            raise ValueError("regather=True gathers the sequence again in backward: set sequence_parallel=True and overlap=True")

    def enter(self, x: Tensor) -> Tensor:
        """From outside to sharded work. Backward sums what the ranks' shares have to say about ``x``."""
        if self.sequence_parallel:
            return twins.gather_for_sharded(x, self.axis, SEQ)
        return twins.copy(x, self.axis)

    def refuse_uneven(self, seq: int) -> None:
        if self.sequence_parallel and seq % self.axis.size:
            raise ValueError(
                f"sequence parallelism cuts the sequence into equal parts: {seq} tokens do not divide over the {self.axis.size} "
                f"ranks of axis {self.axis.name}; use another length, or sequence_parallel=False"
            )

    def leave(self, partial: Tensor) -> Tensor:
        """From each rank's share of a sum to the outside."""
        if self.sequence_parallel:
            return twins.reduce_scatter(partial, self.axis, SEQ)
        return twins.reduce(partial, self.axis)

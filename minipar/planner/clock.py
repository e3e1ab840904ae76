"""Seconds of one training step, from what each rank computes and sends.

Matrix products run at a share of the device's peak; everything elementwise runs at a share of its memory bandwidth; a
collective takes its ring's bytes over a share of the link, and a fixed time to get going. The shares are one set per device
(``EFFICIENCIES``).
"""

from __future__ import annotations

from dataclasses import dataclass

from minipar.checks import not_above_zero, not_number, refuse
from minipar.hardware import Cluster
from minipar.planner.memory import rank_params
from minipar.planner.shape import Transformer
from minipar.planner.split import Split


@dataclass(frozen=True)
class Efficiency:
    """Which share of each peak a training step reaches, and what each call costs besides."""

    matmul: float = 1.0  # of peak flops
    attention: float = 1.0  # of peak flops, in a fused kernel
    memory: float = 1.0  # of memory bandwidth
    inside: float = 1.0  # of the link inside a node
    between: float = 1.0  # of the link between nodes
    call: float = 0.0  # seconds before a collective moves anything
    layer: float = 0.0  # seconds that launching one layer's kernels takes at least, forward and backward together
    overlap: float = 0.0  # the share of the gradient sync that hides behind the backward

    def __post_init__(self) -> None:
        shares, rest = ("matmul", "attention", "memory", "inside", "between"), ("call", "layer", "overlap")
        refuse(*(not_above_zero(f"Efficiency.{name}", getattr(self, name)) for name in shares))
        refuse(*(not_number(f"Efficiency.{name}", getattr(self, name), 0) for name in rest))


# Fitted to published step times and then rounded by hand, so errors on those same runs are no independent test. A100: Narayanan et
#   al. 2021 (table 1), Korthikanti et al. 2022 (table 5), three MT-NLG runs, vTrain's multi-node runs. H100: four Megatron-Core
#   models and two Llama 3 runs (2024, table 4), whose microbatches and chunks are not published and were assumed.
# Others, and paced ranks, reach their modelled figures in full.
EFFICIENCIES = {
    "A100 80 GB": Efficiency(matmul=0.76, attention=0.6, memory=0.9, inside=0.9, between=0.5, call=300e-6, layer=5e-3),
    "H100 SXM": Efficiency(matmul=0.62, attention=0.4, memory=0.6, inside=0.85, between=0.6, call=30e-6, overlap=0.9),
}


def efficiency(cluster: Cluster) -> Efficiency:
    return EFFICIENCIES.get(cluster.device.name, Efficiency())


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and what they are made of on the busiest stage; the parts add up to ``total``."""

    compute: float  # of all microbatches
    tensor: float  # collectives of the tensor and context axes
    experts: float  # all-to-alls
    pipeline: float  # activations from stage to stage
    bubble: float
    gradients: float  # data-parallel sync that overlap does not hide
    optimizer: float

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.experts + self.pipeline + self.bubble + self.gradients + self.optimizer


class Clock:
    """Times the parts of one split of one model on one cluster."""

    def __init__(self, model: Transformer, split: Split, cluster: Cluster, share: Efficiency | None = None) -> None:
        self.model, self.split, self.cluster = model, split, cluster
        self.share = share or efficiency(cluster)
        self.tokens = model.seq / split.cp * split.microbatch  # of one microbatch on one rank
        everyone_waits_for = [rank for rank, _ in cluster.stragglers if rank < split.ranks]
        self.device = min(map(cluster.device_of, everyone_waits_for), key=lambda d: d.peak_flops, default=cluster.device)

    def layer_forward(self) -> float:
        """Seconds of computing one layer's forward for one microbatch."""
        return self._matmul(self.model.matmul_flops(self.tokens)) + self._attention() + self._memory(self._elementwise())

    def layer_both(self) -> float:
        """Forward and backward of one layer, with what is recomputed."""
        forward = self.layer_forward()
        again = {"none": 0.0, "selective": self._attention(), "full": forward}[self.split.recompute]
        floor = self.share.layer * (4 / 3 if self.split.recompute == "full" else 1)
        return max(3 * forward + again, floor)

    def head_both(self) -> float:
        """Forward and backward of the head and the loss (about 30 bytes of traffic a score) for one microbatch."""
        scores = 30 * self.tokens * self.model.vocab / self.split.tp
        return 3 * self._matmul(self.model.head_flops(self.tokens)) + self._memory(scores)

    def _matmul(self, flops: float) -> float:
        return flops / self.split.tp / (self.device.peak_flops * self.share.matmul)

    def _memory(self, nbytes: float) -> float:
        return nbytes / (self.device.memory_bandwidth * self.share.memory)

    def _attention(self) -> float:
        """A fused causal kernel does half of the pairs; an unfused one does all, and moves each score about 13 bytes to and fro."""
        flops = self.model.attention_flops(self.tokens)
        if self.split.fused_attention:
            return flops / 2 / self.split.tp / (self.device.peak_flops * self.share.attention)
        scores = 13 * self.model.heads * self.model.seq * self.tokens / self.split.tp
        return self._matmul(flops) + self._memory(scores)

    def _elementwise(self) -> float:
        """Bytes that norms, dropouts and residuals (22 a value of the residual stream) and the activation (4) move, forward."""
        around = 22 * self.tokens * self.model.width
        mlps = self.model.top_k if self.model.experts else 1
        inside = (5 if self.model.gated else 4) * self.tokens * self.model.ffn * mlps
        return around / (self.split.tp if self.split.sequence_parallel else 1) + inside / self.split.tp

    def layer_tensor(self) -> float:
        """Collectives of one layer: two all-reduces forward, two backward, two more where the forward is done again.

        Split by sequence each is a reduce-scatter and an all-gather of the same bytes. Context parallelism passes keys and values
        around once forward and, with their gradients, twice backward.
        """
        t, c = self.split.tp, self.split.cp
        tensor = self._passes() * self._ring(self._tensor_bytes(), t, stride=1) if t > 1 else 0.0
        context = 3 * self._ring(self._context_bytes(), c, stride=t) if c > 1 else 0.0
        return tensor + context

    def _passes(self) -> int:
        return 6 if self.split.recompute == "full" else 4

    def _tensor_bytes(self) -> float:
        """That one rank sends in one all-reduce."""
        return 2 * (self.split.tp - 1) / self.split.tp * self._stream_bytes()

    def _context_bytes(self) -> float:
        """Keys and values once around the ring."""
        return (self.split.cp - 1) * 2 * 2 * self.tokens * self.model.kv_width / self.split.tp

    def _expert_bytes(self) -> float:
        """That leave one rank in one all-to-all."""
        return (self.split.ep - 1) / self.split.ep * self.model.top_k * self._stream_bytes() / self.split.tp

    def layer_experts(self) -> float:
        """Two all-to-alls forward and two backward of each token's ``top_k`` copies."""
        if self.split.ep == 1:
            return 0.0
        return 4 * self._ring(self._expert_bytes(), self.split.ep, stride=1)

    def _stream_bytes(self) -> float:
        return 2 * self.tokens * self.model.width

    def _ring(self, nbytes: float, n: int, stride: int) -> float:
        """Seconds for each of ``n`` ranks, ``stride`` apart, to send ``nbytes``."""
        return nbytes / self._bandwidth(n, stride) + self.share.call

    def _bandwidth(self, n: int, stride: int) -> float:
        """Bytes per second of one rank's share of a ring.

        Between nodes every rank has a link of its own: a ring with several members in a node uses all of theirs together.
        """
        inside = self.cluster.inside.bandwidth * self.share.inside
        if n * stride <= self.cluster.ranks_per_node:
            return inside
        members = max(1, self.cluster.ranks_per_node // stride)
        return min(inside, members * self.cluster.between.bandwidth * self.share.between)

    def hop(self) -> float:
        """Seconds to pass one microbatch on; tensor-parallel ranks send a share each (Narayanan et al. 2021, section 4.1)."""
        if self.split.pp == 1:
            return 0.0
        stride = self.split.tp * self.split.cp * self.split.dp
        return self._hop_bytes() / self._bandwidth(2, stride)

    def _hop_bytes(self) -> float:
        return self._stream_bytes() / self.split.tp

    def gradient_sync(self) -> float:
        """Seconds of the data-parallel all-reduce of float32 gradients (reduce-scatter and all-gather, where state is sharded)."""
        n = self.split.dp * self.split.cp
        return self._ring(self._gradient_bytes(), n, stride=self.split.tp) if n > 1 else 0.0

    def _most_params(self) -> float:
        """On the rank that holds the most: the first stage has the embedding, the last has the head."""
        return max(rank_params(self.model, self.split, stage) for stage in (0, self.split.pp - 1))

    def _gradient_bytes(self) -> float:
        n = self.split.dp * self.split.cp
        return (3 if self.split.zero == 3 else 2) * (n - 1) / n * GRADIENT_BYTES * self._most_params()

    def rank_bytes(self) -> dict[str, float]:
        """Bytes that one rank of the first stage sends in a step, by axis: those whose seconds ``step`` counts."""
        split, m = self.split, self.split.microbatches
        layers = split.layers_on(0, self.model) * m
        sent = {
            "tp": layers * self._passes() * self._tensor_bytes(),
            "cp": layers * 3 * self._context_bytes(),
            "ep": layers * 4 * self._expert_bytes(),
            "pp": m * split.chunks * self._hop_bytes() if split.pp > 1 else 0.0,
            "dp+cp": self._gradient_bytes(),
        }
        return {axis: nbytes for axis, nbytes in sent.items() if nbytes}

    def optimizer(self) -> float:
        """Seconds to read and write weights, gradients, master weights and two moments: 34 bytes a parameter."""
        return self._memory(34 * self._most_params() / (self.split.dp if self.split.zero else 1))

    def step(self) -> StepTime:
        """The busiest stage's work for every microbatch, the pipeline's fill and drain, and what follows the backward.

        The fill is that of one microbatch through the other stages, 1/chunks of it where the schedule interleaves.
        """
        split, model = self.split, self.model
        m, layers = split.microbatches, split.layers_on(0, model)
        layer, head = self.layer_both(), self.head_both()
        tensor, experts, hop = layers * self.layer_tensor(), layers * self.layer_experts(), 2 * split.chunks * self.hop()
        mean_stage = model.layers / split.pp * (layer + self.layer_tensor() + self.layer_experts()) + head / split.pp + hop
        return StepTime(
            compute=m * (layers * layer + head),
            tensor=m * tensor,
            experts=m * experts,
            pipeline=m * hop,
            bubble=(split.pp - 1) / split.chunks * mean_stage,
            gradients=self.gradient_sync() * (1 - self.share.overlap),
            optimizer=self.optimizer(),
        )


GRADIENT_BYTES = 4  # per parameter in the data-parallel sync

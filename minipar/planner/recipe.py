"""What one rank does for one microbatch, layer by layer: its products and its messages, in order.

The same list is read twice. ``traffic`` adds up the bytes, and ``step`` lets time pass; so a prediction cannot count a message
that it does not wait for. Each list follows the code of the technique that it describes:

    attention, MLP    minipar.tensor_parallel.linear     embedding, loss    minipar.tensor_parallel.vocabulary
    ring, Ulysses     minipar.context_parallel           experts            minipar.expert_parallel.layer
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from minipar.context_parallel.layout import TokenLayout
from minipar.planner.holdings import layer_params, own_layers
from minipar.planner.job import Local

COUNT = 8  # bytes of a number that counts tokens


class Op(NamedTuple):
    """One thing to do.

    ``name`` is "product" or "later" (a weight's gradient, which a split backward puts off), with its flops in ``size``; a
    collective of ``minipar.comm``, with the bytes of its full buffer; "all_to_all" or "exchange" (a message to the next rank of
    the axis, and one from the one before), with the bytes that leave; or "arrive": gradients that are summed over ``axis``.
    A call with a ``key`` is only started, and "wait" with the same key ends it.
    """

    name: str
    size: float = 0.0
    axis: str = ""
    key: str = ""


Ops = list[Op]


class Recipe:
    """The lists for one rank and ``rows`` rows of a microbatch."""

    def __init__(self, local: Local, rows: int) -> None:
        self.local, self.rows, self.job = local, rows, local.job
        self.config, self.z = local.job.config, local.job.number_bytes
        self.tokens = rows * self.config.seq // self.job.cp
        self.stream = self.tokens * self.config.width * self.z  # bytes of a layer's input, whole over tp
        self.tp = "tp" if self.job.tp > 1 else ""

    def forward(self, layer: int) -> Ops:
        if layer == 0:
            return self._leave()
        if layer == self.config.layers + 1:
            return [*self._columns([self.local.vocab]), *self._loss()]
        return [*self._attention(), *self._mlp()]

    def backward(self, layer: int) -> Ops:
        if layer == 0:
            ops = [Op("all_gather", self.stream, self.tp)] if self.job.splits_sequence else []
        elif layer == self.config.layers + 1:
            ops = self._columns_back([self.local.vocab])
        else:
            ops = [*self._mlp_back(), *self._attention_back()]
        return [*self._real(ops), *self._arrivals(layer)]

    def boundary(self) -> float:
        """Bytes of one microbatch's activation between two stages, and of its gradient."""
        return self.stream / (self.job.tp if self.job.splits_sequence else 1)

    # ---- the two halves of a layer

    def _attention(self) -> Ops:
        q, kv = self.local.q_width, self.local.kv_width
        return [*self._columns([q, kv, kv]), *self._core(), *self._rows(q)]

    def _attention_back(self) -> Ops:
        q, kv = self.local.q_width, self.local.kv_width
        return [*self._rows_back(q), *self._core_back(), *self._columns_back([q, kv, kv])]

    def _mlp(self) -> Ops:
        if self.config.experts:
            return self._moe()
        return [*self._columns([self.local.ffn]), *self._rows(self.local.ffn)]

    def _mlp_back(self) -> Ops:
        if self.config.experts:
            return self._moe_back()
        return [*self._rows_back(self.local.ffn), *self._columns_back([self.local.ffn])]

    # ---- products shared over tp

    def _product(self, inner: float, name: str = "product") -> Op:
        return Op(name, 2.0 * self.tokens * self.config.width * inner)

    def _columns(self, widths: list[int]) -> Ops:
        enter = [Op("all_gather", self.stream, self.tp)] if self.job.splits_sequence else []
        return self._real([*enter, *(self._product(width) for width in widths)])

    def _columns_back(self, widths: list[int]) -> Ops:
        """The input's gradient, which then travels while those of the weights are computed; alone, they can be put off."""
        products = [self._product(width) for width in widths]
        if not self.tp:
            return [*products, *(self._product(width, "later") for width in widths)]
        name = "reduce_scatter" if self.job.splits_sequence else "all_reduce"
        return self._real([*products, Op(name, self.stream, self.tp, "columns"), *products, Op("wait", key="columns")])

    def _rows(self, width: int) -> Ops:
        return [self._product(width), *self._leave()]

    def _leave(self) -> Ops:
        name = "reduce_scatter" if self.job.splits_sequence else "all_reduce"
        return self._real([Op(name, self.stream, self.tp)])

    def _rows_back(self, width: int) -> Ops:
        back = [Op("all_gather", self.stream, self.tp)] if self.job.splits_sequence else []
        return self._real([*back, self._product(width), self._product(width, "later")])

    def _loss(self) -> Ops:
        """Of every token the greatest score, then three numbers: see ``vocab_parallel_loss_sum``."""
        wide = self.tokens * max(self.z, 4)
        return self._real([Op("all_reduce", wide, self.tp), Op("all_reduce", 3 * wide, self.tp)])

    def _real(self, ops: Ops) -> Ops:
        """Without the calls over an axis of one rank."""
        local = ("product", "later", "arrive")
        kept = [op for op in ops if op.axis or op.name in (*local, "wait")]
        started = {op.key for op in kept if op.key and op.name != "wait"}
        return [op for op in kept if op.name != "wait" or op.key in started]

    # ---- attention over a sequence that is cut

    def _core(self) -> Ops:
        if self.job.cp == 1:
            return [Op("product", 2.0 * self._pairs(self.config.seq))]  # a causal kernel computes half of 4 s^2 d
        if self._layout().ring == 1:
            return [*self._trade(forward=True), Op("product", 2.0 * self._pairs(self.config.seq) / self.job.cp)]
        return self._ring(flops=4.0)

    def _core_back(self) -> Ops:
        if self.job.cp == 1:
            return [Op("product", 5.0 * self._pairs(self.config.seq))]
        if self._layout().ring == 1:
            return [Op("product", 5.0 * self._pairs(self.config.seq) / self.job.cp), *self._trade(forward=False)]
        return self._ring_back(flops=10.0)

    def _layout(self) -> TokenLayout:
        return TokenLayout.of(self.job.context, self.job.cp)

    def _pairs(self, seq: float) -> float:
        """Rows times heads times query-key pairs times the width of a head."""
        return self.rows * self.local.q_width * seq * seq

    def _blocks(self, step: int, flops: float) -> Op:
        """The products with the keys that are here at a step of the ring; blocks under the mask are computed whole."""
        layout, station = self._layout(), self.local.place.cp
        pairs = layout.pairs(station, (station - step) % layout.ring)
        chunk = self.config.seq / (self.job.cp * len(layout.chunks(0)))
        return Op("product", flops * len(pairs) * self._pairs(chunk))

    def _ring(self, flops: float) -> Ops:
        kv = 2 * self.tokens * self.local.kv_width * self.z
        ops: Ops = []
        for step in range(self.job.cp):
            last = step == self.job.cp - 1
            ops += [] if last else [Op("exchange", kv, "cp", "keys")]
            ops += [self._blocks(step, flops)]
            ops += [] if last else [Op("wait", key="keys")]
        return ops

    def _ring_back(self, flops: float) -> Ops:
        """Keys and values go round again; their gradients follow one step behind."""
        kv = 2 * self.tokens * self.local.kv_width * self.z
        gradients = Op("exchange", kv / self.z * max(self.z, 4), "cp", "gradients")
        ops: Ops = []
        for step in range(self.job.cp):
            last = step == self.job.cp - 1
            ops += [] if last else [Op("exchange", kv, "cp", "keys")]
            ops += [self._blocks(step, flops)]
            if step:
                ops += [Op("wait", key="gradients")] if step > 1 else []
                ops += [gradients]
            ops += [] if last else [Op("wait", key="keys")]
        return [*ops, Op("wait", key="gradients")]

    def _trade(self, forward: bool) -> Ops:
        """Ulysses: queries, keys and values from pieces of the sequence to pieces of the heads, and the result back."""
        cp, heads = self.job.cp, self.local.kv_heads
        repeated = heads * (cp // gcd(heads, cp)) * self.config.head_dim
        leaving = [self.tokens * width * self.z * (cp - 1) / cp for width in (self.local.q_width, repeated, repeated)]
        out = leaving[0]
        return [Op("all_to_all", nbytes, "cp") for nbytes in ([*leaving, out] if forward else [out, *leaving])]

    # ---- experts

    def _routed(self) -> tuple[float, float]:
        """Tokens that this rank routes, and the copies that its experts get where routing is even."""
        shared = self.job.tp > 1 and not self.local.cut_inside
        own = self.tokens / (self.job.tp if shared else 1)
        return own, own * self.config.top_k

    def _moe(self) -> Ops:
        own, copies = self._routed()
        split, inside = self._split(), self.tp if self.local.cut_inside else ""
        data = self.job.joint("dp", "cp") if self.local.cut_inside else self.job.joint("dp", "cp", "tp")
        ep = "" if self.local.cut_inside else self.job.joint("ep")
        travel = self._travel(copies)
        return self._real([
            Op("product", 2.0 * own * self.config.width * self.config.experts),
            Op("all_reduce", (self.config.experts + 1) * COUNT, data),
            Op("all_to_all", (self.config.experts - self.local.experts) * COUNT, ep),
            Op("all_to_all", travel, ep), self._experts(copies, 6.0), Op("all_to_all", travel, ep),
            Op("all_reduce", self.stream, inside), Op("all_reduce", self.stream, split),
        ])  # fmt: skip

    def _moe_back(self) -> Ops:
        own, copies = self._routed()
        split, inside = self._split(), self.tp if self.local.cut_inside else ""
        ep = "" if self.local.cut_inside else self.job.joint("ep")
        travel, router = self._travel(copies), 2.0 * own * self.config.width * self.config.experts
        return self._real([
            Op("all_to_all", travel, ep), self._experts(copies, 12.0), Op("all_to_all", travel, ep),
            Op("all_reduce", copies * self.z, inside), Op("product", router), Op("later", router),
            Op("all_reduce", self.stream, inside), Op("all_reduce", self.stream, split),
        ])  # fmt: skip

    def _split(self) -> str:
        """The axis whose ranks hold the same tokens and route a share of them each."""
        return "" if self.local.cut_inside or self.job.splits_sequence else self.tp

    def _travel(self, copies: float) -> float:
        """Bytes of the rows that leave this rank, where every expert is chosen equally often."""
        away = 1 - self.local.experts / self.config.experts
        return copies * away * self.config.width * self.z

    def _experts(self, copies: float, flops: float) -> Op:
        return Op("product", flops * copies * self.config.width * self.local.expert_ffn)

    # ---- gradients

    def _arrivals(self, layer: int) -> Ops:
        """Taken to come together, when the layer's backward is done, in the order that buckets are filled in first."""
        params = layer_params(self.local, layer)
        if self.config.tied and layer == self.config.layers + 1 and 0 in own_layers(self.job, self.local.place):
            params = params[:-1]  # comes with the embedding
        return [Op("arrive", held.elements * self.z, held.axis) for held in reversed(params) if held.axis]

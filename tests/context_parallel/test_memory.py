"""What autograd keeps for the backward pass falls as 1/n, to the byte: of the attention, and of a whole layer around it."""

import pytest
import torch

from minipar import GPT, GPTConfig, Mesh, context_parallel
from minipar.context_parallel import ContextAttention, TokenLayout
from tests.context_parallel.whole import HEAD_DIM, HEADS, SEQ, cut, inputs

ITEM = 4  # bytes of a float32
CONFIG = GPTConfig(layers=1, width=48, heads=12, seq=24, ffn=96)
CUTS = {
    "ring-2": ("ring", 2, 1),
    "ring-4": ("ring", 4, 1),
    "zigzag-3": ("zigzag", 3, 1),
    "zigzag-4": ("zigzag", 4, 1),
    "ulysses-4": ("ulysses", 4, 1),
    "teams-of-2": ("zigzag", 4, 2),
}


class Kept:
    """The bytes of all tensors that autograd holds on to, but for parameters; each storage once."""

    def __init__(self, *apart: torch.Tensor) -> None:
        self._apart = {x.untyped_storage().data_ptr() for x in apart}
        self._held: dict[int, torch.Tensor] = {}

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda x: x)

    def _pack(self, x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in self._apart:
            self._held[x.untyped_storage().data_ptr()] = x.detach()  # held: or its place might be given to another
        return x

    @property
    def bytes(self) -> int:
        return sum(x.untyped_storage().nbytes() for x in self._held.values())


def kept_by_attention(layout: TokenLayout) -> int:
    axis = Mesh(cp=layout.ranks)["cp"]
    leaves = [x.float().requires_grad_() for x in cut(inputs()[:3], layout.positions(SEQ, axis.rank))]
    kept = Kept()
    with kept.hooks():
        ContextAttention(axis, layout)(*leaves)
    return kept.bytes


@pytest.mark.parametrize("name", CUTS)
def test_attention_keeps_q_k_v_the_result_and_a_logarithm_for_each_query_and_no_more(ranks, name):
    layout = TokenLayout.of(*CUTS[name])
    rows = 2
    whole = rows * HEADS * SEQ * (4 * HEAD_DIM + 1) * ITEM
    assert kept_by_attention(TokenLayout.of("ring", 1)) == whole
    assert ranks(layout.ranks).run(kept_by_attention, layout) == [whole // layout.ranks] * layout.ranks


def kept_by_layer(method: str, n: int, team: int) -> int:
    """Of a whole transformer layer, norms and MLP included, forward on this rank's tokens."""
    axis = Mesh(cp=n)["cp"]
    model = context_parallel.parallelize(GPT(CONFIG), axis, method, team)
    x = torch.randn(1, CONFIG.seq // n, CONFIG.width, requires_grad=True)
    kept = Kept(*model.parameters())
    with kept.hooks():
        model.blocks[0](x)
    return kept.bytes


@pytest.mark.parametrize("name", CUTS)
def test_a_whole_layer_keeps_one_nth(ranks, name):
    method, n, team = CUTS[name]
    whole, x = kept_by_layer("ring", 1, 1), CONFIG.seq * CONFIG.width * ITEM
    assert whole > 8 * x  # a layer, not only its edge
    if method == "ulysses" or team > 1:
        whole += x  # the result of attention is kept twice: as all tokens of a few heads, and as a few tokens of all heads
    assert ranks(n).run(kept_by_layer, method, n, team) == [whole // n] * n


def keeps_everything() -> int:
    """The mistake: each rank gathers all keys and values, and computes with those."""
    from minipar.comm import twins

    axis = Mesh(cp=4)["cp"]
    q, k, v = (x.float().requires_grad_() for x in cut(inputs()[:3], TokenLayout.of("ring", 4).positions(SEQ, axis.rank)))
    kept = Kept()
    with kept.hooks():
        torch.nn.functional.scaled_dot_product_attention(q, *(twins.gather_for_sharded(x, axis, 2) for x in (k, v)))
    return kept.bytes


def test_gathered_keys_would_be_noticed(ranks):
    assert min(ranks(4).run(keeps_everything)) > 2 * kept_by_attention(TokenLayout.of("ring", 1)) / 4

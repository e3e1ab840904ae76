"""The MoE layer in one process against others' ways to compute the same: ``python -m tests.benchmarks.bench_experts``.

* the Mixtral block of ``transformers`` (``pip install "minipar[bench]"``), with its loop over experts and with its grouped
  products: same weights, outputs equal to 1e-5;
* a plain loop over the experts, in torch alone.

CPU, float32, forward alone and forward with backward, timed alternately on one thread; times are measured.
Target: every ratio <= 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers: nothing is fetched

import torch
import torch.nn.functional as F
from torch import Tensor

from minipar import GPTConfig
from minipar.expert_parallel import MoE, MoEOptions
from tests.benchmarks.pairs import alternate, summary

try:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
except ImportError:
    MixtralConfig = None

SHAPES = [  # experts, k, width, ffn, tokens
    (8, 2, 128, 256, 1024),
    (8, 2, 256, 512, 2048),
    (64, 4, 128, 128, 2048),
]
ROUNDS = 20


def ours(experts: int, k: int, width: int, ffn: int) -> MoE:
    torch.manual_seed(0)
    layer = MoE(GPTConfig(width=width, heads=1, ffn=ffn, experts=experts, top_k=k, moe=MoEOptions(balance=0.0)))
    for param in layer.parameters():
        torch.nn.init.normal_(param, std=0.05)
    return layer


def mixtral(layer: MoE, implementation: str) -> torch.nn.Module:
    """Mixtral's block with the weights of ``layer``."""
    experts, width, ffn = layer.experts.gate.shape
    config = MixtralConfig(hidden_size=width, intermediate_size=ffn, num_local_experts=experts, num_experts_per_tok=layer.router.k)
    config._experts_implementation = implementation
    block = MixtralSparseMoeBlock(config)
    with torch.no_grad():
        block.gate.weight.copy_(layer.router.weight)
        block.experts.gate_up_proj.copy_(torch.cat([layer.experts.gate, layer.experts.up], 2).transpose(1, 2))
        block.experts.down_proj.copy_(layer.experts.down.transpose(1, 2))
    return block


def plain_loop(layer: MoE) -> Callable[[Tensor], Tensor]:
    """Expert by expert: find its tokens, compute, add the weighted result where it belongs."""
    experts = layer.experts

    def forward(x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, best = F.linear(tokens, layer.router.weight).softmax(1).topk(layer.router.k)
        weights = weights / weights.sum(1, keepdim=True)
        out = torch.zeros_like(tokens)
        for e in range(len(experts.gate)):
            token, choice = torch.where(best == e)
            rows = tokens[token]
            hidden = F.silu(rows @ experts.gate[e]) * (rows @ experts.up[e])
            out.index_add_(0, token, (hidden @ experts.down[e]) * weights[token, choice, None])
        return out.view_as(x)

    return forward


def timed(run: Callable[[Tensor], Tensor], x: Tensor, backward: bool) -> Callable[[], None]:
    def once() -> None:
        with torch.set_grad_enabled(backward):
            y = run(x)
        if backward:
            y.sum().backward()

    return once


def main() -> None:
    torch.set_num_threads(1)
    if MixtralConfig is None:
        print('transformers is not installed (pip install "minipar[bench]"): only the plain loop is compared')
    for experts, k, width, ffn, tokens in SHAPES:
        layer = ours(experts, k, width, ffn)
        others: dict[str, Callable[[Tensor], Tensor]] = {"plain loop": plain_loop(layer)}
        if MixtralConfig is not None:
            others |= {"Mixtral": mixtral(layer, "eager"), "Mixtral, grouped_mm": mixtral(layer, "grouped_mm")}
        x = torch.randn(4, tokens // 4, width, requires_grad=True)
        print(f"{experts} experts, k {k}, width {width}, ffn {ffn}, {tokens} tokens:    ours          theirs")
        for name, other in others.items():
            with torch.no_grad():
                difference = (layer(x) - other(x)).abs().max().item()
            assert difference < 1e-5, f"{name} computes something else: outputs differ by {difference}"
            for backward in (False, True):
                pair = summary([alternate(timed(layer, x, backward), timed(other, x, backward), ROUNDS)])
                what = "forward + backward" if backward else "forward"
                print(f"  {name:20} {what:19} {pair}  outputs differ by {difference:.0e}")


if __name__ == "__main__":
    main()

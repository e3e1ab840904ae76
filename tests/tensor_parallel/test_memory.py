"""What autograd keeps for the backward pass of one layer, against the published formulas, to the byte."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minipar import GPT, GPTConfig, Mesh, tensor_parallel

S, B, H, A = 32, 2, 64, 8  # sequence, batch, width, heads; ffn = 4 width
TABLE_2 = {  # bytes per layer at 16 bits. Korthikanti et al. 2022, arXiv:2205.05198, table 2; t ranks
    "none": lambda t: S * B * H * (34 + 5 * A * S / H),
    "TP": lambda t: S * B * H * (10 + 24 / t + 5 * A * S / (H * t)),
    "TP+SP": lambda t: S * B * H * (34 / t + 5 * A * S / (H * t)),
    "TP+selective": lambda t: S * B * H * (10 + 24 / t),
    "TP+SP+selective": lambda t: S * B * H * 34 / t,
    "full": lambda t: 2 * S * B * H,
}


def scores_kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as it was before it was fused: keeps the softmax and what dropout makes of it."""
    later = torch.full((S, S), float("-inf"), dtype=q.dtype).triu(1)
    weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + later, -1)
    return nn.functional.dropout(weights, 0.1) @ v


def kept_bytes(tp: int, row: str, dropout: float) -> int:
    """Bytes of all tensors kept for backward, but for parameters and the statistics that the paper leaves out, too."""
    model = GPT(GPTConfig(layers=1, width=H, heads=A, seq=S, dropout=dropout)).to(torch.bfloat16)
    if row.startswith("TP"):
        tensor_parallel.parallelize(model, Mesh(tp=tp)["tp"], sequence_parallel="SP" in row, regather="SP" in row)
    block = model.blocks[0]
    if "selective" not in row and dropout:
        block.attention.core = scores_kept
    elif "selective" not in row:
        block.attention.core = lambda q, k, v: (torch.softmax(q @ k.transpose(-1, -2), -1) + 0) @ v
    x = torch.randn(B, S // tp if "SP" in row else S, H, dtype=torch.bfloat16, requires_grad=True)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters and not _statistic(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = checkpoint(block, x, use_reentrant=True) if row == "full" else block(x)
    assert y.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _statistic(tensor: torch.Tensor) -> bool:
    """A mean, a deviation, or a softmax's sum: one number per row (and head), not one per element."""
    return tensor.shape[-1] == 1 or (tensor.dtype == torch.float32 and tensor.dim() == 3)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("row", TABLE_2)
def test_kept_activations_follow_korthikanti_table_2(ranks, row, tp):
    n = tp if row.startswith("TP") else 1
    with_masks, without = (ranks(n).run(kept_bytes, n, row, p)[0] if n > 1 else kept_bytes(n, row, p) for p in (0.1, 0.0))
    masks = mask_bytes(row, n)
    assert with_masks - without == masks["held"]
    assert without + masks["published"] == TABLE_2[row](n)


def mask_bytes(row: str, t: int) -> dict[str, float]:
    """The dropout masks of a layer: the paper counts a byte an element; torch holds ordinary ones in 16 bits on a CPU."""
    if row == "full":
        return {"held": 0, "published": 0}
    outside, inside = 2 * S * B * H, 0 if "selective" in row else A * S * S * B / t
    sharded = "SP" in row  # ours: one byte
    held = (outside / t if sharded else 2 * outside) + 2 * inside
    return {"held": held, "published": (outside / t if sharded else outside) + inside}

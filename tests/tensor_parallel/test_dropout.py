"""Masks: split tokens get different ones on each rank, replicated tokens the same, and recomputation replays them."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minipar import GPT, GPTConfig, Mesh, comm, data, tensor_parallel
from minipar.tensor_parallel import ShardedDropout, seed_ranks

CONFIG = GPTConfig(layers=2, width=24, heads=12, seq=12, dropout=0.3)


def masks() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mesh = Mesh(tp=3)
    seed_ranks(1, mesh)
    split, whole = ShardedDropout(0.5, mesh["tp"]), nn.Dropout(0.5)
    return split(torch.ones(100)), whole(torch.ones(100)), split(torch.ones(100))


def test_split_tokens_get_different_masks_and_replicated_ones_the_same(ranks):
    split, whole, again = zip(*ranks(3).run(masks), strict=True)
    assert not torch.equal(split[0], split[1])
    assert not torch.equal(split[1], split[2])
    assert not torch.equal(split[0], again[0])
    assert torch.equal(whole[0], whole[1])
    assert torch.equal(whole[1], whole[2])
    assert set(split[0].tolist()) == {0.0, 2.0}  # dropped, or scaled up


def test_dropout_does_nothing_when_evaluating_or_at_zero():
    axis, x = Mesh()["tp"], torch.ones(5)
    assert torch.equal(ShardedDropout(0.5, axis).eval()(x), x)
    assert torch.equal(ShardedDropout(0.0, axis)(x), x)


def seeds(sizes: dict) -> tuple[int, int]:
    mesh = Mesh(**sizes)
    seed_ranks(7, mesh)
    return mesh["tp"].rank, int(torch.randint(2**62, ()))


@pytest.mark.parametrize("other", ["dp", "cp", "pp"])
def test_ranks_that_share_a_layer_share_a_seed_and_no_others_do(ranks, other):
    drawn = [seed for _, seed in ranks(4).run(seeds, {other: 2, "tp": 2})]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def split_and_whole() -> tuple[float, float]:
    """With replicated tokens the split model drops exactly what one process drops."""
    batch = data.batch(0, 2, CONFIG.seq)
    whole, model = GPT(CONFIG).double(), tensor_parallel.parallelize(GPT(CONFIG).double(), Mesh(tp=2)["tp"])
    losses = []
    for each in (whole, model):
        torch.manual_seed(5)
        losses.append(each.loss(batch).item())
    return losses[0], losses[1]


def test_a_split_model_drops_what_one_process_drops(ranks):
    for whole, split in ranks(2).run(split_and_whole):
        assert split == pytest.approx(whole, rel=1e-12)


def recomputed(sequence_parallel: bool) -> list[str]:
    """Names of gradients that change when every block is recomputed in backward."""
    mesh, batch = Mesh(tp=2), data.batch(0, 2, CONFIG.seq)
    model = tensor_parallel.parallelize(GPT(CONFIG), mesh["tp"], sequence_parallel=sequence_parallel)
    grads = []
    for recompute in (False, True):
        seed_ranks(3, mesh)
        model.zero_grad()
        x = model.embedding(batch.inputs)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        model.head.loss_sum(model.head(x), batch.targets).backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    state = torch.get_rng_state()
    assert all(torch.equal(state, other) for other in comm.gather_objects(state))  # the default state stayed together
    return [name for name, grad in grads[0].items() if not torch.equal(grad, grads[1][name])]


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tensor", "sequence"])
def test_recomputation_replays_every_mask_bit_for_bit(ranks, sequence_parallel):
    assert ranks(2).run(recomputed, sequence_parallel) == [[], []]

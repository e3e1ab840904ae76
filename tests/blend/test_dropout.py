"""Dropout under a blend: other rows, other masks; the same rows on several ranks, the same mask, so that copies stay copies."""

import torch

from minipar import GPT, GPTConfig, Mesh, blend, data, optimizer
from minipar.data import Batch
from minipar.parameters import spec

CONFIG = GPTConfig(layers=2, width=16, heads=2, seq=16, dropout=0.3)


def train(sizes: dict[str, int], options: dict[str, object]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Three steps on a batch whose halves are equal: this rank's share of each loss, and the parameters that are whole on it."""
    mesh = Mesh(**sizes)
    layout = blend.build(CONFIG, mesh, GPT(CONFIG), **options)
    half, shares = data.batch(0, 2, CONFIG.seq), []
    twice = Batch(torch.cat([half.inputs] * 2), torch.cat([half.targets] * 2), total=2 * half.total)
    sgd = optimizer.build("sgd", layout.model, 0.1, 0.0)
    accumulate = layout.engine.accumulate

    def listening(batch: Batch) -> torch.Tensor:
        loss = accumulate(batch)
        shares.append(loss.item())
        return loss

    layout.engine.accumulate = listening
    for step in range(3):
        layout.seed(7, step)
        sgd.zero_grad()
        layout.step(twice)
        sgd.step()
    return shares, {name: p.detach() for name, p in layout.model.named_parameters() if not spec(p).shards}


def test_other_rows_get_other_masks_and_what_is_whole_on_several_ranks_stays_equal(ranks):
    for options in ({}, {"sequence_parallel": True}):
        (a, whole), (b, _), (c, _), (d, _) = everyone = ranks(4).run(train, {"dp": 2, "tp": 2}, options)
        assert a == b  # the ranks of one tp axis, which have the same rows
        assert c == d
        assert all(x != y for x, y in zip(a, c, strict=True))  # the same text on another rank of dp
        assert len(set(a)) == 3
        assert whole
        for _, other in everyone:
            assert all(torch.equal(other[name], param) for name, param in whole.items())


def test_a_seed_and_a_step_say_all_of_the_masks(ranks):
    for sizes, options in (({"dp": 2}, {}), ({"pp": 2}, {"microbatches": 2, "schedule": "zb-h1"})):
        first, again = (ranks(2).run(train, sizes, options) for _ in range(2))
        assert [shares for shares, _ in first] == [shares for shares, _ in again]

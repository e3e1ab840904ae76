"""The loss on text that is never trained on: the same number under every split, and nothing is left behind by asking for it."""

import pytest
import torch

from minipar import GPT, GPTConfig, Mesh, blend, data

SMALL = GPTConfig(layers=4, width=16, heads=2, seq=16, tied=True, dropout=0.3)
ROWS = 5  # does not divide: microbatches of unequal length


def held_out(sizes: dict[str, int], options: dict[str, object]) -> tuple[float, float, list[torch.Tensor | None]]:
    """Evaluated once before any training and once after a step; the gradients that the first left."""
    layout = blend.build(SMALL, Mesh(**sizes), GPT(SMALL).double(), **options)
    layout.seed(0, 0)
    first = layout.evaluate(data.batch(0, ROWS, SMALL.seq, "held-out", ragged=True)).item()
    gradients = [p.grad for p in layout.model.parameters()]
    layout.step(data.batch(0, ROWS, SMALL.seq))
    return first, layout.evaluate(data.batch(1, ROWS, SMALL.seq, "held-out")).item(), gradients


SPLITS = {
    "dp": {"dp": 2},
    "pp": {"pp": 2, "microbatches": 3},
    "interleaved": {"pp": 2, "microbatches": 2, "schedule": "interleaved"},
    "zb-v": {"pp": 2, "microbatches": 2, "schedule": "zb-v"},
    "tp": {"tp": 2, "sequence_parallel": True, "microbatches": 2},
    "cp": {"cp": 2},
}


@pytest.fixture(scope="module")
def alone() -> tuple[float, float]:
    return held_out({}, {})[:2]


@pytest.mark.parametrize("name", SPLITS)
def test_every_split_finds_the_same_held_out_loss(ranks, alone, name):
    sizes = {key: value for key, value in SPLITS[name].items() if len(key) == 2}
    options = {key: value for key, value in SPLITS[name].items() if len(key) > 2}
    for first, second, gradients in ranks(2).run(held_out, sizes, options):
        assert (first, second) == pytest.approx(alone, rel=1e-10)
        assert gradients == [None] * len(gradients)

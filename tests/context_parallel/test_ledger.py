"""A GPT whose sequences are cut over ranks learns what the whole one learns, alone and together with tensor parallelism."""

from itertools import product
from unittest import mock

import pytest
import torch

from minipar import GPT, GPTConfig, Mesh, comm, context_parallel, data
from minipar.ledger import compare
from minipar.parameters import full_tensor, sum_over
from tests.grids import grid
from tests.tensor_parallel.layout import Layout, builder

BASE = {"layers": 2, "width": 24, "heads": 12, "seq": 24}
WAYS = {
    "ring": {"method": "ring"},
    "zigzag": {"method": "zigzag"},
    "ulysses": {"method": "ulysses"},
}


def verdict(sizes: dict, cp: dict, tp: dict | None, shape: dict, seq: int = 0) -> str:
    config = GPTConfig(**{**BASE, **shape})
    batches = [data.batch(step, 3, seq or config.seq, ragged=True) for step in range(5)]
    ledger = compare(config, Mesh(**sizes), builder(tp, cp), batches=batches)
    return "equal" if ledger.ok else str(ledger)


USUAL = [("zigzag", 1), ("ring", 2), ("ulysses", 2), ("zigzag", 3), ("ring", 4), ("zigzag", 4), ("ulysses", 4)]
WITH_TP = [("ring", "sequence"), ("zigzag", "tensor"), ("zigzag", "sequence"), ("ulysses", "sequence")]
TP = {"tensor": {}, "sequence": {"sequence_parallel": True}}


@pytest.mark.parametrize(("way", "n"), grid(*USUAL, of=list(product(WAYS, [1, 2, 3, 4]))))
def test_equals_the_reference(ranks, way, n):
    assert ranks(n).run(verdict, {"cp": n}, WAYS[way], None, {}) == ["equal"] * n


@pytest.mark.parametrize("way", [*WAYS, "teams"])
def test_equals_the_reference_with_shared_keys_and_values(ranks, way):
    options = WAYS.get(way, {"method": "zigzag", "ulysses": 2})
    assert ranks(4).run(verdict, {"cp": 4}, options, None, {"kv_heads": 3, "tied": True}) == ["equal"] * 4


@pytest.mark.parametrize(("way", "tp"), grid(*WITH_TP, of=list(product(WAYS, TP))))
def test_equals_the_reference_together_with_tensor_parallelism(ranks, way, tp):
    assert ranks(4).run(verdict, {"cp": 2, "tp": 2}, WAYS[way], TP[tp], {}) == ["equal"] * 4


def test_equals_the_reference_together_with_data_parallelism(ranks):
    assert ranks(4).run(verdict, {"dp": 2, "cp": 2}, WAYS["zigzag"], None, {}) == ["equal"] * 4


@pytest.mark.parametrize("seq", [1, 7, 23])
def test_a_padded_odd_length_equals_the_reference(ranks, seq):
    assert ranks(2).run(padded, seq) == ["equal"] * 2


def padded(seq: int) -> str:
    real = context_parallel.cut

    def pad_and_cut(batch, axis, **options):
        return real(context_parallel.pad(batch, 4), axis, **options)

    with mock.patch.object(context_parallel, "cut", pad_and_cut):
        return verdict({"cp": 2}, WAYS["zigzag"], None, {}, seq)


def low_precision_error(dtype: torch.dtype) -> float:
    config, mesh = GPTConfig(**BASE), Mesh(cp=2)
    batch = data.batch(0, 3, config.seq, ragged=True)
    exact = GPT(config).double()
    expected = exact.loss(batch)
    expected.backward()
    layout = Layout(GPT(config).to(dtype), mesh, cp=WAYS["zigzag"])
    loss = layout.step(batch)
    wanted = dict(exact.named_parameters())
    scale = max(p.grad.abs().max() for p in wanted.values())
    errors = [
        (full_tensor(p.grad, p, mesh).double() - wanted[name].grad).abs().max() / scale
        for name, p in layout.model.named_parameters()
    ]
    return max([*errors, (loss.double() - expected).abs() / expected]).item()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.05)], ids=["float32", "bfloat16"])
def test_low_precision_stays_near_float64(ranks, dtype, bound):
    assert max(ranks(2).run(low_precision_error, dtype)) < bound


def without_positions() -> str:
    """The mistake: each rank counts its positions from zero."""
    real = context_parallel.cut

    def cut(batch, axis, **options):
        part = real(batch, axis, **options)
        return data.Batch(part.inputs, part.targets, part.total, torch.arange(part.inputs.shape[1]))

    with mock.patch.object(context_parallel, "cut", cut):
        return verdict({"cp": 2}, WAYS["zigzag"], None, {})


def test_wrong_positions_are_caught(ranks):
    assert all("step 0: the loss differs" in said for said in ranks(2).run(without_positions))


def unsynced() -> str:
    """The mistake: gradients are summed over dp only, so a context-parallel axis alone is never synced."""

    def build(config, mesh, model):
        layout = Layout(model, mesh, cp=WAYS["ring"])
        for param in layout.model.parameters():
            sum_over(param, ("dp",))
        return layout

    return str(compare(GPTConfig(**BASE), Mesh(cp=2), build, steps=1))


def test_a_context_axis_that_never_syncs_is_caught_and_named(ranks):
    for said in ranks(2).run(unsynced):
        assert "step 0: the gradient of embedding.tokens.weight differs" in said
        assert "an all-reduce over cp is missing" in said


def refused(cp: dict, config: dict, uncut: bool = False) -> str:
    whole = GPTConfig(**{**BASE, **config})
    mesh = Mesh(cp=3)
    with pytest.raises(ValueError) as error:  # noqa: PT011, PT012 - split, cut or run: the caller compares the message
        model = context_parallel.parallelize(GPT(whole), mesh["cp"], **cp)
        batch = data.batch(0, 1, whole.seq)
        model.loss(batch if uncut else context_parallel.cut(batch, mesh["cp"], **cp))
    comm.barrier()
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (({"method": "ulysses"}, {"heads": 4}), "teams of 3 ranks, and 4 heads do not divide"),
        (({"method": "zigzag"}, {"seq": 9}), "needs a multiple of 6"),
        (({"method": "ring"}, {"seq": 2}), "2 tokens do not cut into equal parts over 3 ranks"),
        (({"method": "zigzag", "ulysses": 2}, {}), "teams of 2 ranks do not divide the 3 ranks"),
        (({"method": "spiral"}, {}), "method is one of ring, zigzag, ulysses"),
        (({}, {}, True), "give it context_parallel.cut(batch"),
    ],
    ids=["heads", "length", "more-ranks-than-tokens", "teams", "method", "uncut-batch"],
)
def test_bad_input_is_refused_with_the_reason(ranks, arguments, reason):
    assert all(reason in said for said in ranks(3).run(refused, *arguments))

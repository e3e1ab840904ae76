"""A GPT split by tensor and sequence parallelism learns what the whole one learns; the classic mistakes do not get through."""

from itertools import product
from unittest import mock

import pytest
import torch

from minipar import GPT, GPTConfig, Mesh, comm, data
from minipar.ledger import compare
from minipar.parameters import full_tensor, spec, sum_over
from minipar.tensor_parallel import Region
from tests.grids import grid
from tests.tensor_parallel.layout import Layout, builder

BASE = {"layers": 2, "width": 24, "heads": 12, "seq": 12}
OPTIONS = {
    "plain": {"overlap": False},
    "overlap": {},
    "sequence-plain": {"sequence_parallel": True, "overlap": False},
    "sequence-overlap": {"sequence_parallel": True},
    "sequence-regather": {"sequence_parallel": True, "regather": True},
}
SHAPES = {  # none of them divides everywhere
    "tied-odd-ffn-and-vocab": {"heads": 4, "ffn": 37, "vocab": 257, "tied": True},
    "grouped-query": {"heads": 6, "kv_heads": 2},
    "one-kv-head": {"heads": 4, "kv_heads": 1},
}


def verdict(tp: int, options: dict, shape: dict) -> str:
    ledger = compare(GPTConfig(**{**BASE, **shape}), Mesh(tp=tp), builder(options), steps=5, rows=3, ragged=True)
    return "equal" if ledger.ok else str(ledger)


# each option at 4 ranks, each number of ranks, and on 3 whatever treats a piece that is larger than the others in its own way
USUAL = [(options, 4) for options in OPTIONS] + [("sequence-regather", 1), ("overlap", 2), ("sequence-plain", 2)]
USUAL += [("plain", 3), ("overlap", 3), ("sequence-overlap", 3)]
UNEVEN = [("overlap", shape, 3) for shape in SHAPES] + [("sequence-overlap", shape, 4) for shape in SHAPES]
UNEVEN += [("overlap", "tied-odd-ffn-and-vocab", 2)]


@pytest.mark.parametrize(("options", "tp"), grid(*USUAL, of=list(product(OPTIONS, [1, 2, 3, 4]))))
def test_equals_the_reference(ranks, options, tp):
    assert ranks(tp).run(verdict, tp, OPTIONS[options], {}) == ["equal"] * tp


@pytest.mark.parametrize(
    ("options", "shape", "tp"), grid(*UNEVEN, of=list(product(["overlap", "sequence-overlap"], SHAPES, [2, 3, 4])))
)
def test_equals_the_reference_where_shapes_do_not_divide(ranks, options, shape, tp):
    assert ranks(tp).run(verdict, tp, OPTIONS[options], SHAPES[shape]) == ["equal"] * tp


def low_precision_errors(options: dict, dtype: torch.dtype) -> tuple[float, float]:
    """Of loss and gradients, against float64: the largest difference of the split model, and of one process in ``dtype``."""
    config, mesh = GPTConfig(**BASE), Mesh(tp=2)
    batch = data.batch(0, 3, config.seq, ragged=True)
    exact = GPT(config).double()
    whole, layout = GPT(config).to(dtype), Layout(GPT(config).to(dtype), mesh, options)
    expected = exact.loss(batch)
    expected.backward()
    own = whole.loss(batch)
    own.backward()
    loss = layout.step(batch)
    wanted = {name: p.grad for name, p in exact.named_parameters()}
    scale = max(grad.abs().max() for grad in wanted.values())

    def worst(loss, grads) -> float:
        errors = [(grad.double() - wanted[name]).abs().max() / scale for name, grad in grads.items()]
        return max([*errors, (loss.double() - expected).abs() / expected]).item()

    split = {name: full_tensor(p.grad, p, mesh) for name, p in layout.model.named_parameters()}
    return worst(loss, split), worst(own, {name: p.grad for name, p in whole.named_parameters()})


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.05)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("options", ["overlap", "sequence-overlap"])
def test_low_precision_stays_near_float64(ranks, options, dtype, bound):
    for split, whole in ranks(2).run(low_precision_errors, OPTIONS[options], dtype):
        assert split < bound
        assert split < 3 * whole  # no worse than rounding in one process, within a small factor


def differing_copies(options: dict, mistake: bool = False) -> list[str]:
    """After five steps of plain SGD, the replicated parameters that are not the same, bit for bit, on all ranks."""
    config, mesh = GPTConfig(**BASE), Mesh(tp=3)
    layout = Layout(GPT(config), mesh, options)
    if mistake:
        for param in layout.model.parameters():
            sum_over(param, ("dp", "cp"))
    for step in range(5):
        layout.model.zero_grad()
        layout.step(data.batch(step, 2, config.seq))
        with torch.no_grad():
            for param in layout.model.parameters():
                param -= 0.1 * param.grad
    whole = {name: p.detach() for name, p in layout.model.named_parameters() if not spec(p).shards}
    assert any("norm" in name for name in whole)
    return [name for name, p in whole.items() if not torch.equal(comm.all_reduce(p, op="max"), comm.all_reduce(p, op="min"))]


@pytest.mark.parametrize("options", OPTIONS)
def test_replicated_parameters_stay_bitwise_equal(ranks, options):
    assert ranks(3).run(differing_copies, OPTIONS[options]) == [[]] * 3


def test_unsynced_norms_of_sequence_parallelism_drift_apart(ranks):
    drifted = ranks(3).run(differing_copies, OPTIONS["sequence-overlap"], True)[0]
    assert {"blocks.0.norm1.weight", "blocks.1.mlp.down.bias", "embedding.positions.weight"} <= set(drifted)


def without_copy() -> str:
    with mock.patch.object(Region, "enter", lambda region, x: x):
        return verdict(2, OPTIONS["plain"], {})


def test_a_missing_backward_all_reduce_is_found_and_named(ranks):
    for said in ranks(2).run(without_copy):
        assert "the gradient of embedding" in said  # the forward pass was right, and so were loss and last gradients


def norms_unsynced() -> str:
    def build(config, mesh, model):
        layout = Layout(model, mesh, OPTIONS["sequence-overlap"])
        for block in layout.model.blocks:
            sum_over(block.norm2.weight, ("dp", "cp"))
        return layout

    return str(compare(GPTConfig(**BASE), Mesh(tp=2), build, steps=1))


def test_a_norm_left_unsynced_is_found_and_its_cause_named(ranks):
    for said in ranks(2).run(norms_unsynced):
        assert "the gradient of blocks.0.norm2.weight" in said
        assert "an all-reduce over tp is missing" in said


def bias_before_the_sum() -> str:
    from minipar.tensor_parallel import linear

    def forward(layer, x):
        return layer.region.leave(torch.nn.functional.linear(x, layer.weight, layer.bias))

    with mock.patch.object(linear.RowParallelLinear, "forward", forward):
        return verdict(2, OPTIONS["plain"], {})


def test_a_bias_that_counts_once_per_rank_is_found(ranks):
    assert all(said != "equal" for said in ranks(2).run(bias_before_the_sum))

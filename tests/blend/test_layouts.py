"""Every way to split the model at once learns what the whole one learns."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from minipar import GPTConfig, Mesh, blend
from minipar.expert_parallel import MoEOptions
from minipar.ledger import Ledger, compare

Sizes = dict[str, int]

DENSE = GPTConfig(layers=4, width=32, heads=4, seq=16, tied=True)
# the balance loss is a product of means over a microbatch, so it is another loss for another number of microbatches: left out here
MOE = GPTConfig(layers=4, width=32, heads=4, seq=16, experts=4, moe=MoEOptions(balance=0.0))


def layouts(experts: bool) -> list[Sizes]:
    """All meshes of 8 ranks or fewer whose axes are 1, 2 or 4; with experts also over ``ep``."""
    found = []
    for dp, pp, cp, tp in product((1, 2, 4), repeat=4):
        if dp * pp * cp * tp <= 8:
            for ep in (1, 2, 4) if experts else (1,):
                if dp * cp * tp % ep == 0:
                    found.append({"dp": dp, "pp": pp, "cp": cp, "tp": tp, "ep": ep})
    return found


def name(sizes: Sizes) -> str:
    return "x".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "one"


def difference(config: GPTConfig, sizes: Sizes, steps: int, options: dict[str, Any]) -> Ledger:
    def build(config, mesh, model):
        return blend.build(config, mesh, model, **options)

    return compare(config, Mesh(**sizes), build, rows=8, steps=steps, ragged=True)


def check(ranks: Any, config: GPTConfig, sizes: Sizes, steps: int = 2, **options: Any) -> None:
    n = sizes.get("dp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1) * sizes.get("tp", 1)
    for ledger in ranks(n).run(difference, config, sizes, steps, options):
        assert ledger.ok, f"{name(sizes)}: {ledger}"


SAMPLE = [  # each axis beside each other one, and every option at least once
    ({"dp": 2, "pp": 2}, {"microbatches": 3}),
    ({"dp": 2, "tp": 2}, {"sequence_parallel": True, "microbatches": 2, "bucket_bytes": 4096}),
    ({"dp": 2, "cp": 2}, {"context": "ulysses"}),
    ({"pp": 2, "tp": 2}, {"microbatches": 2, "schedule": "zb-h1", "sequence_parallel": True}),
    ({"pp": 2, "cp": 2}, {"microbatches": 2, "schedule": "interleaved", "context": "ring"}),
    ({"cp": 2, "tp": 2}, {"sequence_parallel": True}),
    ({"dp": 2, "pp": 2, "tp": 2}, {"microbatches": 2, "schedule": "zb-v"}),
]


@pytest.mark.parametrize(("sizes", "options"), SAMPLE, ids=[name(sizes) for sizes, _ in SAMPLE])
def test_dense_layouts_equal_the_reference(ranks, sizes: Sizes, options: dict[str, Any]) -> None:
    check(ranks, DENSE, sizes, **options)


EXPERTS = [
    ({"dp": 4, "ep": 2}, {}),
    ({"dp": 2, "pp": 2, "ep": 2}, {"microbatches": 2, "schedule": "gpipe"}),
    ({"dp": 2, "tp": 2, "ep": 4}, {"sequence_parallel": True}),
    ({"cp": 2, "tp": 2, "ep": 2}, {}),
]


@pytest.mark.parametrize(("sizes", "options"), EXPERTS, ids=[name(sizes) for sizes, _ in EXPERTS])
def test_layouts_with_experts_equal_the_reference(ranks, sizes: Sizes, options: dict[str, Any]) -> None:
    check(ranks, MOE, sizes, **options)


@pytest.mark.full
@pytest.mark.parametrize("sizes", layouts(experts=False), ids=name)
def test_every_dense_layout_equals_the_reference(ranks, sizes: Sizes) -> None:
    check(ranks, DENSE, sizes, steps=3, microbatches=2, sequence_parallel=True)


@pytest.mark.full
@pytest.mark.parametrize("sizes", layouts(experts=True), ids=name)
def test_every_layout_with_experts_equals_the_reference(ranks, sizes: Sizes) -> None:
    check(ranks, MOE, sizes, steps=3, microbatches=2, sequence_parallel=True)


def test_a_step_without_microbatches_is_refused() -> None:
    from minipar import GPT

    with pytest.raises(ValueError, match="at least one microbatch"):
        blend.build(DENSE, Mesh(), GPT(DENSE), microbatches=0)

"""Experts over the ranks learn exactly what one process with all of them does, auxiliary losses included."""

from unittest import mock

import pytest

from minipar import GPT, GPTConfig, Mesh, data
from minipar.expert_parallel import MoE, MoEOptions
from minipar.ledger import compare
from minipar.parameters import sum_over
from tests.expert_parallel.layout import Layout, builder

BASE = {"layers": 1, "width": 8, "heads": 4, "ffn": 6, "seq": 6}
STRONG = MoEOptions(balance=0.3, z=0.1)  # auxiliary losses that weigh as much as the main one


def book(shape: dict, sizes: dict, tp: dict | None = None, rows: int = 5) -> str:
    """ "equal", or how the ledger says it: 5 rows divide over 1 rank only, and some targets are masked."""
    ledger = compare(GPTConfig(**{**BASE, **shape}), Mesh(**sizes), builder(tp), steps=2, rows=rows, ragged=True)
    return "equal" if ledger.ok else str(ledger)


SHAPES = [(e, k) for e in range(1, 9) for k in range(1, min(e, 4) + 1)]  # experts, and how many of them a token goes to


def books(shapes: list[tuple[int, int]], ranks: int) -> dict[tuple[int, int], str]:
    """Each shape on ``ranks`` ranks; with fewer experts than ranks the ranks hold copies."""
    ep = {e: max(d for d in range(1, ranks + 1) if ranks % d == 0 and d <= e) for e in range(1, 9)}
    return {(e, k): book({"experts": e, "top_k": k, "moe": STRONG}, {"dp": ranks, "ep": ep[e]}) for e, k in shapes}


def quarter(n: int) -> list[tuple[int, int]]:
    """Another quarter of the shapes for each number of ranks: in each, 4 to 8 experts and every k."""
    return [(e, k) for e, k in SHAPES if (e + k) % 4 == n % 4]


def test_the_quarters_make_up_all_shapes():
    quarters = [quarter(n) for n in (1, 2, 3, 4)]
    assert sorted(shape for each in quarters for shape in each) == SHAPES
    assert all({k for _, k in each} == {1, 2, 3, 4} for each in quarters)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_dropless_experts_equal_one_process(ranks, n):
    results = ranks(n).run(books, quarter(n), n)[0] if n > 1 else books(quarter(n), n)
    assert set(results.values()) == {"equal"}, results


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_dropless_experts_of_every_shape_equal_one_process(ranks, n):
    results = ranks(n).run(books, SHAPES, n, timeout=100)[0] if n > 1 else books(SHAPES, 1)
    assert set(results.values()) == {"equal"}, results


@pytest.mark.parametrize(
    "options",
    [
        MoEOptions(router="switch", capacity=1.0, balance=0.3),
        MoEOptions(capacity=0.75, balance=0.3),
        MoEOptions(capacity=0.75, order="score"),
        MoEOptions(router="sigmoid", z=0.1, shared=1),
        MoEOptions(router="expert-choice", shared=2),
        MoEOptions(softmax="after"),
        MoEOptions(renormalise=False),
    ],
    ids=lambda o: f"{o.router}-{o.order if o.capacity else 'dropless'}-{o.softmax}-{o.renormalise}",
)
def test_every_router_and_drop_rule_equals_one_process(ranks, options):
    shape = {"experts": 5, "top_k": 1 if options.router == "switch" else 2, "moe": options}
    assert set(ranks(4).run(book, shape, {"dp": 4, "ep": 4})) == {"equal"}
    assert set(ranks(4).run(book, shape, {"dp": 4, "ep": 2})) == {"equal"}


def tokens_by_expert(shape: dict, rows: int) -> list[int]:
    """The copies of this rank's tokens for each expert, in one forward pass of four ranks."""
    config = GPTConfig(**{**BASE, **shape})
    layout = Layout(GPT(config).double(), Mesh(dp=4, ep=4))
    layout.step(data.batch(0, rows, config.seq, ragged=True))
    return layout.model.blocks[0].mlp.last.kept.tolist()


def test_ranks_without_any_token_and_an_expert_without_any_take_part(ranks):
    """Nor does an expert hold up the step that gets tokens from one rank, and none from the others."""
    shape = {"experts": 8, "top_k": 1, "moe": STRONG}
    assert set(ranks(4).run(book, shape, {"dp": 4, "ep": 4}, None, 2)) == {"equal"}
    by_rank = ranks(4).run(tokens_by_expert, shape, 2)
    assert [0] * 8 in by_rank  # a rank without tokens
    senders = [sum(count > 0 for count in counts) for counts in zip(*by_rank, strict=True)]
    assert {0, 1} <= set(senders)


@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize(
    "tp",
    [None, {}, {"sequence_parallel": True}, {"sequence_parallel": True, "regather": True}],
    ids=["none", "plain", "sequence", "regather"],
)
def test_experts_beside_tensor_parallel_attention_equal_one_process(ranks, ep, tp):
    """``ep`` 1: experts cut inside, unless the sequence is split; else each tensor-parallel rank routes its share of the tokens."""
    shape = {"experts": 5, "top_k": 2, "moe": MoEOptions(balance=0.3, z=0.1, shared=1)}
    assert set(ranks(4).run(book, shape, {"dp": 2, "tp": 2, "ep": ep}, tp)) == {"equal"}


def mistaken(name: str) -> str:
    """The ledger's verdict on one mistake."""
    shape = GPTConfig(**BASE, experts=4, top_k=2, moe=STRONG)
    per_rank = mock.patch.object(MoE, "_global_counts", lambda self, routing: (routing.counts, routing.tokens))

    def build(config, mesh, model):
        layout = Layout(model, mesh)
        if name == "experts summed over dp":
            for param in layout.model.blocks[0].mlp.experts.parameters():
                sum_over(param, ("dp", "cp"))
        if name == "router left alone":
            sum_over(layout.model.blocks[0].mlp.router.weight, ())
        if name == "auxiliary per microbatch":
            layout.model.blocks[0].mlp.auxiliary_scale = 2.0
        return layout

    with per_rank if name == "balance per rank" else mock.MagicMock():
        return str(compare(shape, Mesh(dp=2, ep=2), build, steps=1))


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("balance per rank", "no multiple of the reference"),
        ("experts summed over dp", "experts."),
        ("router left alone", "router.weight"),
        ("auxiliary per microbatch", "no multiple of the reference"),
    ],
)
def test_a_mistake_is_caught(ranks, name, where):
    (said, *_) = ranks(2).run(mistaken, name)
    assert "differs from the reference" in said
    assert where in said

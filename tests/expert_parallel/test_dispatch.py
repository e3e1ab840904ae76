"""Every copy reaches its expert once and comes back to its token; what crosses the wire is what must, and no more."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipar import Mesh
from minipar.expert_parallel.dispatch import combine, dispatch, experts_by_rank, plan
from minipar.mesh import Axis
from minipar.trace import tracer

ALONE = Axis("ep", 1, 0, (0,))
WIDTH = 3


def scattered(n: int, experts: int, copies_by_rank: list[list[tuple[int, int]]], tokens: list[int]) -> tuple:
    """Rank r dispatches its (token, expert) copies and combines them: the rows its experts saw, the sums, bytes, and plan."""
    axis = Mesh(dp=n, ep=n)["ep"] if n > 1 else ALONE
    copies, count = copies_by_rank[axis.rank], tokens[axis.rank]
    token, expert = (torch.tensor([c[i] for c in copies], dtype=torch.int64) for i in (0, 1))
    x = 100.0 * axis.rank + torch.arange(count, dtype=torch.float64)[:, None].repeat(1, WIDTH)  # a token knows its rank and number
    x.requires_grad_()
    weight = torch.arange(1.0, len(copies) + 1, dtype=torch.float64, requires_grad=True)
    sizes = experts_by_rank(experts, n)
    with tracer.watch() as spans:
        mapping = plan(expert, token, count, sizes, axis)
        rows = dispatch(x, mapping, axis)
        y = combine(rows, weight, mapping, axis)
        y.backward(torch.ones_like(y))
    first = sum(sizes[: axis.rank])
    held = [first + e for e, c in enumerate(mapping.counts) for _ in range(c)]
    sent = [span.nbytes for span in spans if span.name == "all_to_all"]
    seen = list(zip(held, rows[:, 0].tolist(), strict=True))
    return seen, y.detach(), x.grad, weight.grad, sent, mapping


def check(n: int, experts: int, copies: list[list[tuple[int, int]]], tokens: list[int], results: list[tuple]) -> None:
    seen = sorted(pair for result in results for pair in result[0])
    assert seen == sorted((e, 100.0 * r + t) for r, rank in enumerate(copies) for t, e in rank)  # none lost, none doubled
    sizes = experts_by_rank(experts, n)
    home = [rank for rank, size in enumerate(sizes) for _ in range(size)]
    for rank, (_, y, x_grad, weight_grad, sent, _) in enumerate(results):
        expected, slope = torch.zeros(tokens[rank], WIDTH, dtype=torch.float64), torch.zeros(tokens[rank], dtype=torch.float64)
        for i, (token, _) in enumerate(copies[rank]):
            expected[token] += (i + 1.0) * (100.0 * rank + token)
            slope[token] += i + 1.0
        assert torch.equal(y, expected)
        assert torch.equal(x_grad, slope[:, None].expand(-1, WIDTH))
        assert torch.equal(weight_grad, WIDTH * torch.tensor([100.0 * rank + t for t, _ in copies[rank]], dtype=torch.float64))
        away = sum(home[e] != rank for _, e in copies[rank]) * WIDTH * 8
        coming = sum(home[e] == rank for r, other in enumerate(copies) for _, e in other if r != rank) * WIDTH * 8
        counts = 8 * (experts - sizes[rank])
        assert sent == ([counts, away, coming, away, coming] if n > 1 else [])  # counts; out and back; the gradients out and back


def drawn(data: st.DataObject, n: int, experts: int) -> tuple[list[list[tuple[int, int]]], list[int]]:
    tokens = data.draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    routes = st.lists(st.integers(0, experts - 1), max_size=experts, unique=True)
    copies = [[(t, e) for t in range(count) for e in data.draw(routes)] for count in tokens]
    return copies, tokens


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 7))
def test_one_process_loses_and_doubles_nothing(data, experts):
    copies, tokens = drawn(data, 1, experts)
    check(1, experts, copies, tokens, [scattered(1, experts, copies, tokens)])


def test_ranks_lose_and_double_nothing_and_send_only_what_leaves(ranks):
    @settings(max_examples=25, deadline=None)
    @given(st.data(), st.integers(2, 3))
    def examples(data, n):
        experts = data.draw(st.integers(n, 7))
        copies, tokens = drawn(data, n, experts)
        check(n, experts, copies, tokens, ranks(n).run(scattered, n, experts, copies, tokens))

    examples()


def test_all_tokens_to_one_expert(ranks):
    copies, tokens = [[(t, 2) for t in range(4)] for _ in range(3)], [4, 4, 4]
    results = ranks(3).run(scattered, 3, 3, copies, tokens)
    check(3, 3, copies, tokens, results)
    assert [r[5].counts for r in results] == [[0], [0], [12]]


def test_nobody_has_a_token(ranks):
    check(2, 3, [[], []], [0, 0], ranks(2).run(scattered, 2, 3, [[], []], [0, 0]))

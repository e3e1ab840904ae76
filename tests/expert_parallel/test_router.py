"""Routes: the same for a token wherever it lies, at any precision; and clear words about logits that are no numbers."""

import pytest
import torch
import torch.nn.functional as F

from minipar import GPT, GPTConfig, Mesh, data
from minipar.expert_parallel import MoE, MoEOptions, end_step, parallelize
from minipar.expert_parallel.router import Router, sigmoid_router, softmax_router, top_k

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0], [0.0, 0.5, 4.0, 4.5]])


def test_softmax_after_selection_is_before_with_the_weights_renormalised():
    before = softmax_router(LOGITS, 2, "before", renormalise=True)
    after = softmax_router(LOGITS, 2, "after")
    assert before[0].tolist() == after[0].tolist() == [[1, 2], [3, 2]]
    torch.testing.assert_close(before[1], after[1])
    raw = softmax_router(LOGITS, 2, "before", renormalise=False)[1]
    torch.testing.assert_close(raw, LOGITS.softmax(1).gather(1, before[0]))
    assert (raw.sum(1) < 1).all()


def test_the_bias_steers_the_selection_but_not_the_weights():
    plain = sigmoid_router(LOGITS, torch.zeros(4), 2)
    pushed = sigmoid_router(LOGITS, torch.tensor([9.0, 0, 0, 0]), 2)
    assert plain[0].tolist() == [[1, 2], [3, 2]]
    assert pushed[0].tolist() == [[0, 1], [0, 3]]
    chosen = LOGITS.sigmoid().gather(1, pushed[0])
    torch.testing.assert_close(pushed[1], chosen / chosen.sum(1, keepdim=True))


def test_of_equal_scores_the_lower_expert_is_chosen():
    assert top_k(torch.zeros(1, 9), 3).tolist() == [[0, 1, 2]]
    assert top_k(torch.tensor([[1.0, 2.0, 1.0, 2.0, 0.0]]), 3).tolist() == [[1, 3, 0]]


def test_in_low_precision_a_token_goes_where_it_went_in_any_company():
    """bfloat16 has so few values that 16 experts tie all the time; each token must still take the same route in every batch."""
    torch.manual_seed(0)
    router = Router(8, 16, 3, MoEOptions()).to(torch.bfloat16)
    x = torch.randint(-2, 3, (200, 8)).to(torch.bfloat16)
    router.weight.data = torch.randint(-1, 2, (16, 8)).to(torch.bfloat16)
    routing = router(x)
    assert routing.logits.dtype == torch.float32
    routes = routing.expert.view(200, 3)
    assert len({tuple(row) for row in routing.logits.tolist()}) > 100
    assert any(len(set(row)) < 16 for row in routing.logits.tolist())  # ties there are
    order = torch.randperm(200)
    assert torch.equal(router(x[order]).expert.view(200, 3), routes[order])
    for part, expected in zip(x.split(67), routes.split(67), strict=True):
        assert torch.equal(router(part).expert.view(-1, 3), expected)
    exact = F.linear(x.float(), router.weight.float())
    assert torch.equal(top_k(exact.softmax(1), 3), routes)


def test_a_whole_layer_in_low_precision_stays_near_the_exact_one():
    torch.manual_seed(0)
    layer = MoE(GPTConfig(width=16, heads=1, ffn=32, experts=4, top_k=2))
    x = torch.randn(50, 16).bfloat16().float()
    for param in layer.parameters():
        param.data = param.data.mul(10).bfloat16().float()
    expected = layer(x)
    low = layer.bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert torch.equal(layer.last.kept, torch.bincount(layer.router(x).expert, minlength=4))
    assert (low.float() - expected).norm() < 0.02 * expected.norm()


def test_each_expert_picks_its_favourite_tokens():
    torch.manual_seed(0)
    layer = MoE(GPTConfig(width=4, heads=1, ffn=4, experts=3, top_k=2, moe=MoEOptions(router="expert-choice")))
    x = torch.randn(9, 4)
    layer(x)
    assert layer.last.kept.tolist() == [6, 6, 6]  # 9 tokens * 2 / 3 experts
    probs = F.linear(x, layer.router.weight).softmax(1)
    best = {(int(t), e) for e in range(3) for t in probs[:, e].topk(6).indices}
    kept = layer._drop(layer.router(x), 9)
    assert set(zip(kept.token.tolist(), kept.expert.tolist(), strict=True)) == best


def test_noise_changes_routes_in_training_only():
    torch.manual_seed(0)
    router = Router(8, 8, 2, MoEOptions(router="noisy"))
    x = torch.randn(100, 8)
    assert not torch.equal(router(x).expert, router(x).expert)
    router.eval()
    assert torch.equal(router(x).expert, router(x).expert)
    router.train()(x).weight.sum().backward()
    assert router.noise.grad.any()  # how noisy to be is learnt


def spoiled(step: int) -> str:
    """What rank 1 of 2 hears when its second layer's logits overflow at ``step``."""
    mesh = Mesh(dp=2, ep=2)
    config = GPTConfig(layers=2, width=8, heads=2, ffn=8, seq=4, experts=2)
    model = parallelize(GPT(config), mesh)
    for _ in range(step):
        model(data.batch(0, 1, 4).inputs)
        end_step(model)
    if mesh.world.rank == 1:
        model.blocks[1].mlp.router.weight.data[1, 0] = float("nan")
        with pytest.raises(FloatingPointError) as complaint:
            model.blocks[1].mlp(torch.ones(1, 4, 8))
        return str(complaint.value)
    return ""


def test_logits_that_are_no_numbers_are_named_with_layer_step_and_rank(ranks):
    complaint = ranks(2).run(spoiled, 3)[1]
    assert "router logits of blocks.1.mlp at step 3 on rank 1 are not finite numbers: 4 of 4 tokens, first token 0" in complaint


def test_impossible_routers_are_refused():
    with pytest.raises(ValueError, match="top_k = 5 of 4 experts"):
        GPTConfig(experts=4, top_k=5)
    with pytest.raises(ValueError, match="top_k = 5 of 4 experts"):
        Router(8, 4, 5, MoEOptions())
    with pytest.raises(ValueError, match="set top_k=1"):
        Router(8, 4, 2, MoEOptions(router="switch"))
    with pytest.raises(ValueError, match="router is one of top-k"):
        MoEOptions(router="hash")
    with pytest.raises(ValueError, match="balance cannot be negative"):
        MoEOptions(balance=-1)


def test_weights_of_another_shape_are_refused():
    one, other = (MoE(GPTConfig(width=8, heads=1, ffn=8, experts=e)) for e in (4, 6))
    with pytest.raises(
        RuntimeError, match=r"router.weight.*shape torch.Size\(\[6, 8\]\).*shape in current model is torch.Size\(\[4, 8\]\)"
    ):
        one.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="4 experts of width 8 cannot take rows"):
        one.experts(torch.ones(3, 7), [3, 0, 0, 0])

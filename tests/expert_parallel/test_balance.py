"""Balance: what the losses and the bias are, what they do to a router that collapses, and what the numbers about load mean."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minipar import GPT, GPTConfig, Mesh, comm, data
from minipar.expert_parallel import MoE, MoEOptions, auxiliary_loss, end_step, parallelize
from minipar.expert_parallel.losses import adjusted_bias, balance_loss, with_auxiliary, z_loss
from minipar.expert_parallel.remedies import Load, replay
from minipar.expert_parallel.skewed import REMEDIES, Setting, record, train


def test_the_balance_loss_is_one_when_even_and_the_number_of_experts_at_worst():
    even = torch.full((12, 4), 0.25)
    assert balance_loss(even, torch.tensor([6, 6, 6, 6]), 12).item() == pytest.approx(1)
    one = torch.zeros(12, 4)
    one[:, 2] = 1
    assert balance_loss(one, torch.tensor([0, 0, 12, 0]), 12).item() == pytest.approx(4)


def test_shares_of_ranks_add_up_to_the_global_loss_and_a_mean_of_rank_losses_is_another():
    torch.manual_seed(0)
    probs, expert = torch.randn(10, 3, dtype=torch.float64).softmax(1), torch.tensor([0] * 7 + [1, 2, 2])
    counts = torch.bincount(expert, minlength=3)
    whole = balance_loss(probs, counts, 10)
    shares = balance_loss(probs[:7], counts, 10) + balance_loss(probs[7:], counts, 10)
    torch.testing.assert_close(shares, whole)
    parts = ((probs[:7], expert[:7]), (probs[7:], expert[7:]))
    alone = [balance_loss(p, torch.bincount(e, minlength=3), len(p)) for p, e in parts]
    assert abs(sum(alone) / 2 - whole) > 0.1


def test_the_z_loss_is_the_mean_square_of_the_log_sum_exp():
    assert z_loss(torch.zeros(5, 8), 5).item() == pytest.approx(math.log(8) ** 2)
    logits = torch.zeros(1, 1)
    assert z_loss(logits + 100, 1).item() == pytest.approx(100**2)


def test_an_auxiliary_loss_rides_along_without_changing_the_output():
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = with_auxiliary(x * 2, (x**2).sum())
    assert torch.equal(y, x * 2)
    y.sum().backward()
    assert x.grad.tolist() == [2 + 4, 2 + 6]


def test_the_bias_rises_where_an_expert_got_too_little():
    moved = adjusted_bias(torch.tensor([0.0, 0.5, 0.0]), torch.tensor([9, 3, 6]), 0.1)
    assert moved.tolist() == pytest.approx([-0.1, 0.6, 0.0])


def auxiliaries(n: int) -> tuple[float, list[float]]:
    """The auxiliary loss over all ranks, and the bias after two steps."""
    mesh = Mesh(dp=n, ep=n)
    config = GPTConfig(layers=2, width=8, heads=2, ffn=6, seq=6, experts=5, moe=MoEOptions(router="sigmoid", z=0.5, bias_rate=0.01))
    model = GPT(config).double()
    parallelize(model, mesh)
    for step in range(2):
        model(data.batch(step, 5, 6).rows_of(mesh["dp"]).inputs)
        end_step(model)
    return comm.all_reduce(auxiliary_loss(model), mesh["dp"]).item(), model.blocks[1].mlp.router.bias.tolist()


def test_auxiliary_losses_and_biases_do_not_depend_on_the_rank_count(ranks):
    loss, bias = auxiliaries(1)
    assert any(bias)
    for n in (2, 3):
        for other, other_bias in ranks(n).run(auxiliaries, n):
            assert other == pytest.approx(loss, rel=1e-12)
            assert other_bias == bias


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any))
def test_load_numbers_stay_in_their_bounds(counts):
    load = Load(tuple(counts))
    assert 1 <= load.max_over_mean <= len(counts)
    assert -1e-12 <= load.entropy <= 1 + 1e-12
    assert 0 <= load.variation <= math.sqrt(len(counts) - 1) + 1e-12


def test_load_numbers_at_both_ends():
    even, one = Load((5, 5, 5, 5)), Load((20, 0, 0, 0), dropped=15)
    assert (even.max_over_mean, even.variation, even.drop_share) == (1, 0, 0)
    assert even.entropy == pytest.approx(1)
    assert (one.max_over_mean, one.entropy, one.drop_share) == (4, 0, 0.75)
    assert one.variation == pytest.approx(math.sqrt(3))


def last(steps: list, count: int = 20) -> float:
    """Mean of max/mean load over the last steps."""
    return sum(step.loads[0].max_over_mean for step in steps[-count:]) / count


def test_the_router_collapses_by_itself_and_the_bias_spreads_it():
    """200 steps on skewed text: without a remedy the busiest expert has over 2.5 times its share, with the bias under 1.3."""
    left_alone = list(train(Setting(moe=REMEDIES["none"]), Mesh()))
    spread = list(train(Setting(moe=REMEDIES["loss-free bias"]), Mesh()))
    assert min(step.loads[0].max_over_mean for step in left_alone[10:]) > 2.5
    assert last(spread) < 1.3
    assert spread[-1].loss < 0.5 * spread[0].loss


def test_the_same_seed_gives_the_same_run_on_one_rank_and_on_two(ranks):
    setting = Setting(moe=REMEDIES["balance loss"], rows=6)
    alone = [step.loads for step in train(setting, Mesh(), 3)]
    assert [step.loads for step in train(setting, Mesh(), 3)] == alone
    for steps in ranks(2).run(lambda: list(train(setting, Mesh(dp=2, ep=2), 3))):
        assert [step.loads for step in steps] == alone
        assert all(sum(step.rows) == sum(step.loads[0].counts) for step in steps)
        assert all(step.traffic[0][1] == step.traffic[1][0] > 0 == step.traffic[0][0] for step in steps)


def test_remedies_on_one_recorded_trace():
    trace = record(Setting(rows=16), Mesh(), steps=40, keep=20)
    assert len(trace.tokens) == 20
    strengths = {"none": 1, "balance loss": 1, "loss-free bias": 0.01, "capacity": 1.25}
    runs = {name: list(replay(trace, 1, name, strength)) for name, strength in strengths.items()}
    assert [load.counts for load in runs["capacity"]] == [load.counts for load in runs["none"]]  # dropping moves nobody
    assert all(load.drop_share > 0.2 for load in runs["capacity"])
    for name in ("balance loss", "loss-free bias"):
        assert runs[name][0].counts == runs["none"][0].counts  # the same tokens and router to begin with
        assert runs[name][-1].max_over_mean < runs["none"][-1].max_over_mean
    with pytest.raises(ValueError, match="remedy is one of"):
        next(replay(trace, 1, "prayer"))


def test_a_layer_counts_its_load_between_steps_in_training_only():
    layer = MoE(GPTConfig(width=4, heads=1, ffn=4, experts=3))
    layer(torch.randn(5, 4))
    layer(torch.randn(2, 4))
    assert layer.load.sum() == 14
    layer.eval()(torch.randn(5, 4))
    assert layer.load.sum() == 14
    layer.end_step()
    assert layer.load.sum() == 0
    assert layer.steps == 1

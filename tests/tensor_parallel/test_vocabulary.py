"""Embedding and loss split by the vocabulary: the same as torch's own, for any scores and any target."""

import pytest
import torch
import torch.nn.functional as F

from minipar import Mesh, comm
from minipar.comm import twins
from minipar.data import IGNORE
from minipar.tensor_parallel import vocab_parallel_loss_sum
from tests.comm.gradients import error

VOCAB = 13  # a prime: no number of ranks divides it


def scores(scale: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randn(2, VOCAB + 1, VOCAB, generator=torch.Generator().manual_seed(3)).double() * scale).to(dtype)


def targets() -> torch.Tensor:
    """Every token of the vocabulary is a target in the first row; the second row is ragged."""
    every = torch.arange(VOCAB + 1)
    every[-1] = IGNORE
    ragged = torch.full_like(every, IGNORE)
    ragged[:3] = torch.tensor([VOCAB - 1, 0, 5])
    return torch.stack([every, ragged])


def split_loss(
    n: int, logits: torch.Tensor, smoothing: float, loss_sum=vocab_parallel_loss_sum
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the gradient of all scores."""
    axis = Mesh(tp=n)["tp"]
    leaf = logits.tensor_split(n, -1)[axis.rank].clone().requires_grad_()
    loss = loss_sum(leaf, targets(), axis, VOCAB, smoothing)
    loss.backward()
    return loss.detach(), torch.cat(comm.gather_objects(leaf.grad, axis), -1)


def torch_loss(logits: torch.Tensor, smoothing: float) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = logits.clone().requires_grad_()
    loss = F.cross_entropy(leaf.flatten(0, 1), targets().flatten(), ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    loss.backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["sharp", "smoothed"])
@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["small", "huge"])
def test_loss_and_gradient_equal_torch(ranks, scale, smoothing, n):
    loss, grad = torch_loss(scores(scale), smoothing)
    for got, got_grad in ranks(n).run(split_loss, n, scores(scale), smoothing):
        torch.testing.assert_close(got, loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(got_grad, grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_huge_scores_in_low_precision_stay_finite_and_right(ranks, dtype):
    logits = torch.where(scores(1.0) > 0, 1e4, -1e4).to(dtype)
    loss, _ = torch_loss(logits.double(), 0.0)
    for got, grad in ranks(3).run(split_loss, 3, logits, 0.0):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), loss, rtol=1e-6, atol=0)
        assert grad.isfinite().all()


def own_greatest(logits, targets, axis, vocab, smoothing):
    """The mistake: each rank takes off the greatest of its own scores."""
    kept = comm.all_reduce
    own = lambda x, axis, op="sum": x if op == "max" else kept(x, axis, op)  # noqa: E731
    try:
        comm.all_reduce = own
        return vocab_parallel_loss_sum(logits, targets, axis, vocab, smoothing)
    finally:
        comm.all_reduce = kept


def own_vocabulary(logits, targets, axis, vocab, smoothing):
    """The mistake: smoothing spreads over this rank's part of the vocabulary only."""
    whole = vocab_parallel_loss_sum(logits, targets, axis, vocab, 0.0)
    inside = -F.log_softmax(logits, -1).mean(-1).masked_fill(targets == IGNORE, 0.0).sum()
    return (1 - smoothing) * whole + smoothing * twins.reduce(inside, axis) / axis.size


@pytest.mark.parametrize("mistake", [own_greatest, own_vocabulary], ids=lambda f: f.__name__)
def test_these_checks_catch_the_known_mistakes(ranks, mistake):
    loss, _ = torch_loss(scores(1.0), 0.1)
    for got, _ in ranks(2).run(split_loss, 2, scores(1.0), 0.1, mistake):
        assert not torch.isclose(got, loss, rtol=1e-3)


def loss_gradient_error(n: int) -> float:
    axis = Mesh(tp=n)["tp"]
    wanted = torch.tensor([[0, 2 * n - 1, IGNORE, n]])
    return error(lambda x: vocab_parallel_loss_sum(x, wanted, axis, label_smoothing=0.2), axis, (1, 4, 2), "own", "alike")


@pytest.mark.parametrize("n", [2, 3])
def test_the_loss_gradient_is_its_slope(ranks, n):
    assert max(ranks(n).run(loss_gradient_error, n)) < 1e-7


def looked_up(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    from minipar.parameters import full_tensor
    from minipar.tensor_parallel import VocabParallelTokens

    mesh = Mesh(tp=n)
    table = torch.nn.Embedding(VOCAB, 3, dtype=torch.float64, _weight=torch.arange(VOCAB * 3.0).double().view(VOCAB, 3))
    layer = VocabParallelTokens(table, mesh["tp"])
    out = twins.reduce(layer(torch.tensor([[0, 12, 6, 6]])), mesh["tp"])
    (out * torch.tensor([1.0, 2.0, 3.0, 4.0]).double().view(1, 4, 1)).sum().backward()
    return out.detach(), full_tensor(layer.weight.grad, layer.weight, mesh)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_looking_up_tokens_equals_the_whole_table(ranks, n):
    grad = torch.zeros(VOCAB, 3).double()
    grad[0], grad[12], grad[6] = 1, 2, 7  # token 6 came twice, with weights 3 and 4
    for out, got in ranks(n).run(looked_up, n):
        assert torch.equal(out, torch.arange(VOCAB * 3.0).double().view(VOCAB, 3)[torch.tensor([[0, 12, 6, 6]])])
        assert torch.equal(got, grad)

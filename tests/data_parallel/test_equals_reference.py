"""Data parallel learns exactly what one process learns: loss, gradients, their norm and the parameters after each step of SGD."""

import pytest
import torch

from minipar import GPTConfig, Mesh, blend, comm, data, ledger
from minipar.data_parallel import Average, Overlapped, average_gradients
from minipar.model import loss_sum
from minipar.parameters import sync_gradients

CONFIG = GPTConfig(layers=2, width=16, heads=2, vocab=256, seq=12)
TIED = GPTConfig(layers=1, width=16, heads=2, vocab=256, seq=12, tied=True)

KINDS = {
    "average": lambda config, mesh, model: Average(model, mesh),
    "one bucket": lambda config, mesh, model: Overlapped(model, mesh, bucket_bytes=1e9),
    "small buckets": lambda config, mesh, model: Overlapped(model, mesh, bucket_bytes=5000),
    "microbatches": lambda config, mesh, model: Overlapped(model, mesh, bucket_bytes=5000, microbatches=3),
    "blend": None,
}


def books(config: GPTConfig, kind: str, ragged: bool, rows: int) -> tuple[bool, str]:
    book = ledger.compare(config, Mesh(dp=comm.world().size), KINDS[kind], steps=3, rows=rows, ragged=ragged)
    return book.ok, str(book)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", list(KINDS))
def test_gradients_equal_reference(ranks, n, kind):
    pool = ranks(n)
    for config, ragged, rows in [(CONFIG, True, 7), (TIED, False, 8)]:
        for ok, said in pool.run(books, config, kind, ragged, rows):
            assert ok, said


@pytest.mark.parametrize("kind", ["average", "small buckets", "microbatches"])
def test_a_rank_without_rows_changes_nothing(ranks, kind):
    for ok, said in ranks(4).run(books, CONFIG, kind, True, 2):
        assert ok, said


class MeanOfMeans(Average):
    """The mistake: each rank's own mean, averaged over ranks."""

    def step(self, batch):
        mine = batch.rows_of(self.mesh["dp"])
        loss = loss_sum(self.model(mine.inputs), mine.targets) / mine.tokens / self.mesh["dp"].size
        loss.backward()
        sync_gradients(self.model.parameters(), self.mesh)
        return comm.all_reduce(loss, self.mesh["dp"])


class WeightedMeans(MeanOfMeans):
    """Own means again, but weighted by each rank's share of the tokens."""

    def step(self, batch):
        mine = batch.rows_of(self.mesh["dp"])
        loss = loss_sum(self.model(mine.inputs), mine.targets) / mine.tokens
        loss.backward()
        average_gradients(self.model.parameters(), mine.tokens, self.mesh["dp"])
        return comm.all_reduce(loss * mine.tokens / batch.total, self.mesh["dp"])


def mean_of_means(ragged: bool, kind) -> tuple[bool, str, str]:
    book = ledger.compare(CONFIG, Mesh(dp=2), lambda config, mesh, model: kind(model, mesh), rows=8, ragged=ragged)
    return book.ok, book.first.what if book.first else "", str(book)


def test_a_mean_of_means_is_right_for_equal_shards_and_found_out_for_unequal_ones(ranks):
    assert [ok for ok, _, _ in ranks(2).run(mean_of_means, False, MeanOfMeans)] == [True, True]
    for ok, what, _ in ranks(2).run(mean_of_means, True, MeanOfMeans):
        assert not ok
        assert what == "loss"
    assert [ok for ok, _, _ in ranks(2).run(mean_of_means, True, WeightedMeans)] == [True, True]


class AveragesParameters(Average):
    """The mistake: the hook is handed the parameter, and sums it as if it were the gradient."""

    def __init__(self, model, mesh):
        super().__init__(model, mesh)
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(self.hook)

    def hook(self, grad):  # it is no gradient
        grad.data.copy_(comm.all_reduce(grad.data, self.mesh["dp"]) / self.mesh["dp"].size)

    def step(self, batch):
        loss = self.model.loss(batch.rows_of(self.mesh["dp"]))
        loss.backward()
        return comm.all_reduce(loss, self.mesh["dp"])


class ForgetsTheLastMicrobatch(Overlapped):
    """The mistake: only the gradients of the last microbatch are sent."""

    def _backward(self, loss, microbatch):
        if microbatch == self.microbatches - 1:
            self.model.zero_grad()
        super()._backward(loss, microbatch)


def books_of_mistake(kind, *args) -> tuple[bool, str, str]:
    book = ledger.compare(CONFIG, Mesh(dp=2), lambda config, mesh, model: kind(model, mesh, *args), rows=8, steps=2)
    return book.ok, book.first.what if book.first else "", book.cause


def test_a_hook_that_averages_the_parameter_is_found_out(ranks):
    for ok, what, cause in ranks(2).run(books_of_mistake, AveragesParameters):
        assert not ok
        assert what == "gradient"
        assert "an all-reduce over dp is missing" in cause


def test_losing_the_earlier_microbatches_is_found_out(ranks):
    for ok, what, _ in ranks(2).run(books_of_mistake, ForgetsTheLastMicrobatch, 5000, 2):
        assert not ok
        assert what == "gradient"


def float32_run(kind: str) -> list[float]:
    from minipar import GPT

    torch.manual_seed(0)
    mesh = Mesh(dp=comm.world().size)
    layout = (KINDS[kind] or blend.build)(CONFIG, mesh, GPT(CONFIG))
    for step in range(5):
        layout.model.zero_grad()
        layout.step(data.batch(step, 8, CONFIG.seq, ragged=True))
        with torch.no_grad():
            for param in layout.model.parameters():
                param -= 0.1 * param.grad
    return [p.detach().clone() for p in layout.model.parameters()]


@pytest.mark.parametrize("kind", ["average", "small buckets"])
def test_replicas_stay_bitwise_equal(ranks, kind):
    first, *others = ranks(3).run(float32_run, kind)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))

"""The ledger: passes what is equal, and says what is wrong with what is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minipar import GPT, GPTConfig, Mesh, comm
from minipar.data import Batch
from minipar.ledger import Ledger, compare, relative_error
from minipar.parameters import shard, sum_over, sync_gradients

TINY = GPTConfig(layers=1, width=16, heads=2, kv_heads=1, seq=8, vocab=256)


class Replicas:
    """Data parallelism in its shortest form; ``mistake`` spoils the gradients."""

    def __init__(self, model: GPT, mesh: Mesh, mistake: Callable[[nn.Module], None] | None) -> None:
        self.model, self.mesh, self.mistake = model, mesh, mistake

    def step(self, batch: Batch) -> Tensor:
        loss = self.model.loss(batch.rows_of(self.mesh["dp"]))
        loss.backward()
        if self.mistake is None:
            sync_gradients(self.model.parameters(), self.mesh)
        else:
            self.mistake(self.model)
        return comm.all_reduce(loss, self.mesh["dp"])


def on_rank(mistake: Callable[[nn.Module], None] | None = None, ragged: bool = False) -> Ledger:
    n = comm.world().size
    mesh = Mesh(dp=n)
    return compare(TINY, mesh, build=lambda config, mesh, model: Replicas(model, mesh, mistake), rows=5, ragged=ragged)


def summed_twice(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = 2 * comm.all_reduce(p.grad)


def averaged(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = comm.all_reduce(p.grad) / comm.world().size


def seven_times(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = 7 * comm.all_reduce(p.grad)


def never_synced(model: nn.Module) -> None:
    pass


def one_rank_lost(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = comm.all_reduce(p.grad if comm.world().rank else torch.zeros_like(p))


def norm_forgotten(model: nn.Module) -> None:
    for name, p in model.named_parameters():
        p.grad = torch.zeros_like(p) if "norm" in name else comm.all_reduce(p.grad)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equal_layouts_pass_with_ragged_batches(ranks, n: int) -> None:
    for ledger in ranks(n).run(on_rank, None, True):
        assert ledger.ok, str(ledger)
        assert str(ledger).startswith(f"equal to the reference: {len(ledger.entries)} values (counted)")
        assert str(ledger).endswith("(measured)")  # rounding differs from machine to machine
        assert len(ledger.losses) == 3
        assert ledger.losses[-1] < ledger.losses[0]


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (summed_twice, "2 times too large, the size of axis dp"),
        (averaged, "2 times too small, the size of axis dp"),
        (seven_times, "7 times too large: a missing 1/7"),
        (never_synced, "an all-reduce over dp is missing"),
        (one_rank_lost, "part of it is missing"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_each_mistake_is_found_in_the_first_gradient_and_named(ranks, mistake: Any, says: str) -> None:
    ledgers = ranks(2).run(on_rank, mistake)
    assert len({str(ledger) for ledger in ledgers}) == 1  # every rank is told the same
    assert not ledgers[0].ok
    assert "gradient of embedding.tokens.weight" in str(ledgers[0])
    assert says in str(ledgers[0])


def test_a_parameter_without_gradient_is_named(ranks) -> None:
    text = str(ranks(2).run(on_rank, norm_forgotten)[0])
    assert "gradient of blocks.0.norm1.weight" in text
    assert "takes no part" in text


class Renamed(Replicas):
    """Holds the model one level deeper, so that every name has a prefix."""

    def __init__(self, model: GPT, mesh: Mesh) -> None:
        super().__init__(model, mesh, None)
        self.whole, self.model = model, nn.ModuleDict({"wrapped": model})

    def step(self, batch: Batch) -> Tensor:
        loss = self.whole.loss(batch)
        loss.backward()
        return loss


def test_a_layout_with_other_names_is_refused() -> None:
    with pytest.raises(KeyError, match="keep the reference's names"):
        compare(TINY, Mesh(), build=lambda config, mesh, model: Renamed(model, mesh), steps=1)


def test_a_layout_that_lost_parameters_is_refused() -> None:
    def without_blocks(config: GPTConfig, mesh: Mesh, model: GPT) -> Replicas:
        layout = Replicas(model, mesh, None)
        layout.step = lambda batch: model.loss(batch)
        layout.model = nn.ModuleDict({"embedding": model.embedding, "head": model.head})
        return layout

    with pytest.raises(KeyError, match="no rank holds blocks"):
        compare(TINY, Mesh(), build=without_blocks, steps=1)


def test_relative_error_of_nan_is_infinite_and_shapes_must_agree() -> None:
    assert relative_error(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")
    assert relative_error(torch.tensor([1.5]), torch.tensor([1.0])) == 0.5
    with pytest.raises(ValueError, match="shape"):
        relative_error(torch.ones(2), torch.ones(3), "w")


def uneven_shards() -> tuple[Tensor, Tensor, Tensor]:
    """A parameter of 5 rows in pieces of 2, 2, 1, and another split over two axes."""
    from minipar.parameters import full_tensor

    mesh = Mesh(tp=3)
    full = torch.arange(10.0).view(5, 2)
    piece = nn.Parameter(full.split([2, 2, 1])[mesh["tp"].rank].clone())
    shard(piece, "tp", 0, [2, 2, 1])
    return full_tensor(piece, piece, mesh), full, full_tensor(piece * 2, piece, mesh)


def test_pieces_of_unequal_size_make_the_full_tensor(ranks) -> None:
    for got, full, doubled in ranks(3).run(uneven_shards):
        assert torch.equal(got, full)
        assert torch.equal(doubled, 2 * full)


def norms() -> dict[str, tuple[float, float]]:
    """One sharded and one replicated parameter on a 2 x 2 mesh, against the norm of the whole."""
    from minipar.parameters import grad_norm

    mesh = Mesh(dp=2, tp=2)
    whole, same = torch.tensor([3.0, -12.0]), torch.tensor([4.0])
    sharded, replicated = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    shard(sharded, "tp", 0)
    sharded.grad, replicated.grad = whole[mesh["tp"].rank].view(1), same.clone()
    params = [sharded, replicated]
    two, largest = grad_norm(params, mesh).item(), grad_norm(params, mesh, float("inf")).item()
    return {"2": (two, 13.0), "inf": (largest, 12.0)}


def test_grad_norm_counts_replicated_parameters_once_and_the_largest_is_a_max(ranks) -> None:
    for result in ranks(4).run(norms):
        for got, expected in result.values():
            assert got == pytest.approx(expected)


def synced() -> list[float]:
    mesh = Mesh(dp=2, tp=2)
    over_dp, over_all, missing = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    sum_over(over_all, ("dp", "cp", "tp"))
    over_dp.grad, over_all.grad = torch.ones(1), torch.ones(1)
    if mesh["dp"].rank == 0:
        missing.grad = torch.ones(1)
    sync_gradients([over_dp, over_all, missing], mesh)
    return [p.grad.item() for p in (over_dp, over_all, missing)]


def test_each_gradient_is_summed_over_the_axes_it_names_and_a_missing_one_counts_as_zero(ranks) -> None:
    assert ranks(4).run(synced) == [[2.0, 4.0, 1.0]] * 4

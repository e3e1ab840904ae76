"""A schedule on real ranks: the same gradients as the whole model, in the order of the table, in the memory it says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from minipar import GPTConfig, Mesh
from minipar.data import IGNORE, Batch, batch
from minipar.model import GPT
from minipar.pipeline_parallel import NAMES, Schedule, build
from minipar.pipeline_parallel.run import Pipeline
from minipar.pipeline_parallel.stage import replayable
from tests.pipeline_parallel import on_ranks
from tests.pipeline_parallel.on_ranks import TINY

CASES = [(name, p, m) for p, m in ((1, 3), (2, 5), (3, 4), (4, 8)) for name in NAMES]


@pytest.mark.parametrize(("name", "p", "m"), CASES, ids=[f"{n}-{p}x{m}" for n, p, m in CASES])
def test_pipeline_gradients_equal_reference(ranks, name: str, p: int, m: int) -> None:
    """Tied embeddings, unequal numbers of targets, microbatches of unequal size."""
    config = GPTConfig(**TINY, tied=True)
    arguments = (config, build(name, p, m), {"pp": p}, {}, {"rows": m + 1, "ragged": True, "steps": 2})
    said = [on_ranks.ledger_of(*arguments)] if p == 1 else ranks(p).run(on_ranks.ledger_of, *arguments)
    assert said == [None] * p


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_pipeline_gradients_equal_reference_on_eight_ranks(ranks, name: str) -> None:
    config = GPTConfig(**{**TINY, "layers": 17}, tied=True)
    said = ranks(8).run(on_ranks.ledger_of, config, build(name, 8, 11), {"pp": 8}, {}, {"rows": 13, "ragged": True, "steps": 2})
    assert said == [None] * 8


@pytest.mark.parametrize(
    ("name", "mesh"), [("1f1b", {"pp": 2, "dp": 2}), ("zb-v", {"pp": 2, "dp": 2}), ("zb-h1", {"pp": 1, "dp": 3})]
)
def test_pipeline_beside_data_parallel_equals_reference(ranks, name: str, mesh: dict[str, int]) -> None:
    config = GPTConfig(**TINY, tied=True)
    schedule = build(name, mesh["pp"], 3)
    n = mesh["pp"] * mesh["dp"]
    assert ranks(n).run(on_ranks.ledger_of, config, schedule, mesh, {}, {"rows": 7, "ragged": True}) == [None] * n


@pytest.mark.parametrize("sizes", [[1, 1, 10], [9, 2, 1], [3, 6, 3]])
def test_uneven_stages_equal_reference(ranks, sizes: list[int]) -> None:
    options = {"sizes": sizes}
    assert ranks(3).run(on_ranks.ledger_of, GPTConfig(**TINY), build("1f1b", 3, 4), {"pp": 3}, options, {"rows": 4}) == [None] * 3


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_empty_microbatches_and_microbatches_without_targets_count_for_nothing(ranks, name: str) -> None:
    """Three rows in five microbatches; of the second batch one row has no target at all."""
    config = GPTConfig(**TINY)
    full = batch(0, 3, config.seq)
    targets = full.targets.clone()
    targets[1] = IGNORE
    hollow = dataclasses.replace(full, targets=targets, total=full.total - config.seq)
    said = ranks(2).run(on_ranks.ledger_of, config, build(name, 2, 5), {"pp": 2}, {}, {"batches": [full, hollow]})
    assert said == [None] * 2


def test_the_ledger_catches_a_mean_of_means(ranks) -> None:
    """The classic: each microbatch's loss is averaged over its own tokens."""
    options = {"loss_sum": on_ranks.mean_of_means}
    said = ranks(2).run(on_ranks.ledger_of, GPTConfig(**TINY), build("1f1b", 2, 3), {"pp": 2}, options, {"rows": 6, "ragged": True})
    assert "step 0: the loss" in said[0]


@pytest.mark.parametrize(("name", "p"), [("1f1b", 3), ("zb-h1", 2), ("zb-v", 2)])
def test_the_tied_embedding_stays_bitwise_the_same_on_both_stages(ranks, name: str, p: int) -> None:
    outs = ranks(p).run(on_ranks.train, GPTConfig(**TINY, tied=True), name, 4, 4)
    holders = [out for out in outs if "embedding.tokens.weight" in out["parameters"]]
    assert len(holders) == (1 if name == "zb-v" else 2)  # the V's first and last stage share a rank and the tensor itself
    for what in ("parameters", "gradients"):
        assert torch.equal(holders[0][what]["embedding.tokens.weight"], holders[-1][what]["embedding.tokens.weight"])


@pytest.mark.parametrize(
    ("name", "p", "checkpointed"),
    [
        ("gpipe", 2, False),
        ("interleaved", 2, False),
        ("1f1b", 3, False),
        ("1f1b", 3, True),
        ("zb-v", 3, True),
        ("zb-auto", 3, True),
    ],
)
def test_dropout_masks_depend_on_layer_and_microbatch_alone(ranks, name: str, p: int, checkpointed: bool) -> None:
    """Any schedule, any cut, recomputed or not: the masks, and so the gradients, of one process that seeds as the stages do."""
    config = GPTConfig(**TINY, dropout=0.3)
    outs = ranks(p).run(on_ranks.train, config, name, 3, 1, checkpointed, 5)
    expected = _gradients_in_one_process(config, microbatches=3, seeds=(5, 0, 0, 0))
    for out in outs:
        for tensor_name, gradient in out["gradients"].items():
            assert torch.allclose(gradient, expected[tensor_name], rtol=1e-10, atol=1e-14), tensor_name


def _gradients_in_one_process(config: GPTConfig, microbatches: int, seeds: tuple[int, ...]) -> dict[str, torch.Tensor]:
    model = GPT(config).double()
    for k, part in enumerate(batch(0, 2 * microbatches, config.seq, ragged=True).parts(microbatches)):
        x = part.inputs
        for i, layer in enumerate(model.layers()):
            with replayable(*seeds, k, i):
                x = layer(x)
        (model.head.loss_sum(x, part.targets) / part.total).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_a_pipeline_predicts_itself_from_the_matrices_of_its_stages() -> None:
    """The embedding only looks up, and so costs nothing; a layer costs what it multiplies each token with."""
    config = GPTConfig(**TINY)
    pipe = Pipeline(GPT(config), build("zb-v", 1, 3), Mesh(), sizes=[1, 11])
    layer, head = 4 * config.width**2 + 2 * config.width * config.ffn, config.width * config.vocab
    assert pipe.costs == [0, 10 * layer + head]
    assert pipe.expected().makespan == 3 * 3 * pipe.costs[1]


@pytest.mark.parametrize(("p", "m"), [(2, 5), (4, 8)])
@pytest.mark.parametrize("name", NAMES)
def test_what_runs_is_the_table_in_its_order_and_memory(ranks, name: str, p: int, m: int) -> None:
    """The measured timeline holds the schedule's actions; live activations as simulated; traffic by the closed form."""
    schedule = build(name, p, m)
    outs = ranks(p).run(on_ranks.one_step, schedule, m, GPTConfig(**TINY))
    assert outs[0]["order"] == [[tuple(action) for action in row] for row in schedule.rows]
    assert [out["peak"] for out in outs] == schedule.simulate().peak_activations
    assert [out["left"] for out in outs] == [0] * p
    crossings = sum(a != b for a, b in zip(schedule.placement, schedule.placement[1:], strict=False))
    activation = TINY["seq"] * TINY["width"] * 8  # bytes of one row in float64
    assert outs[0]["bytes"] == 2 * m * crossings * activation
    assert outs[0]["source"] == "measured"


def test_an_edited_table_runs_as_edited(ranks) -> None:
    schedule = Schedule.parse("F1 F0 B1 B0\nF1 B1 F0 B0")
    outs = ranks(2).run(on_ranks.one_step, schedule, 2, GPTConfig(**TINY))
    assert [[f"{kind}{k}" for kind, _, k in row] for row in outs[0]["order"]] == [
        ["F1", "F0", "B1", "B0"],
        ["F1", "B1", "F0", "B0"],
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "dualpipe-v"])
def test_nothing_is_read_or_overwritten_while_its_transfer_is_under_way(ranks, name: str) -> None:
    schedule = build(name, 2, 4)
    late = ranks(2).run(on_ranks.losses_when_transfers_are_late, schedule, True)
    assert late == ranks(2).run(on_ranks.losses_when_transfers_are_late, schedule, False)


def test_the_form_of_messages_is_said_once_for_each_boundary_and_remembered(ranks) -> None:
    """Else a rank blocks for it ahead of the work that it could do: a paced run would show that as idle time."""
    said = ranks(2).run(on_ranks.announcements, build("interleaved", 2, 3))
    assert said == [[3, 0], [3, 0]]  # 4 stages have 3 boundaries, each with both ranks at its ends


@pytest.mark.parametrize(("name", "sizes"), [("1f1b", [3, 5]), ("zb-h1", [5, 3]), ("zb-v", [2, 2, 2, 2]), ("interleaved", None)])
def test_any_sequential_model_with_changing_shapes(ranks, name: str, sizes: list[int] | None) -> None:
    outs = ranks(2).run(on_ranks.train_sequential, build(name, 2, 3), sizes)
    names = set()
    for out in outs:
        mine = {key: value for key, value in out.items() if not key.startswith("whole.")}
        names |= set(mine)
        for key, value in mine.items():
            assert torch.allclose(value, out[f"whole.{key}"], rtol=1e-10), key
    assert len(names) == 9


def test_one_rank_needs_no_process_group() -> None:
    config = GPTConfig(**TINY)
    model, whole = GPT(config), GPT(config)
    pipe = Pipeline(model, build("zb-v", 1, 2), Mesh())
    data = batch(0, 4, config.seq)
    loss = pipe.step(data)
    assert loss.item() == pytest.approx(whole.loss(data).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "options", "words"),
    [
        (build("1f1b", 2, 2), {}, "for 2 ranks, and axis pp has 1"),
        (build("interleaved", 1, 2, chunks=13), {}, "12 layers do not fill 13 stages"),
        (build("zb-v", 1, 2), {"sizes": [3, 3]}, "add up to the 12 layers"),
        (build("zb-v", 1, 2), {"sizes": [12, 0]}, "each at least 1"),
        (build("zb-v", 1, 2), {"pace": {"F": -1, "I": 1, "W": 1}}, r"pace\['F'\] of stage 0 is -1"),
        (Schedule.parse("B0 F0"), {}, "B0 comes before F0"),
    ],
)
def test_what_cannot_run_is_refused(schedule: Schedule, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Pipeline(GPT(GPTConfig(**TINY)), schedule, Mesh(), **options)


def test_a_model_that_cannot_be_cut_or_scored_is_refused() -> None:
    with pytest.raises(TypeError, match=r"nn\.Sequential"):
        Pipeline(torch.nn.Linear(2, 2), build("1f1b", 1, 1), Mesh())
    with pytest.raises(ValueError, match="pass loss_sum="):
        Pipeline(torch.nn.Sequential(torch.nn.Linear(2, 2)), build("1f1b", 1, 1), Mesh())
    pipe = Pipeline(torch.nn.Sequential(torch.nn.Linear(2, 2)), build("1f1b", 1, 1), Mesh(), loss_sum=on_ranks.squares)
    assert pipe.step(Batch(torch.zeros(1, 2), torch.zeros(1, 2), 1)).shape == ()

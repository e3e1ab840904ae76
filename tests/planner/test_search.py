"""Ranking splits: fast, complete, and clear about what is impossible."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minipar import GPTConfig
from minipar.hardware import PRESETS, Cluster, Device, Link
from minipar.planner import Job, Split, Transformer, plan, predict, rank_splits, timeline, training_days, utilisation
from minipar.planner.clock import Clock, Efficiency
from minipar.planner.search import splits
from minipar.planner.split import divisors, splits_of
from minipar.planner.traffic import rank_bytes
from tests.planner.published import LLAMA_405B, megatron

SMALL = megatron(8, 1024, 16)


def test_best_comes_first_and_everything_fits() -> None:
    plans = plan(SMALL, "a100-nvlink", ranks=16, batch=64)
    times = [p.time.total for p in plans.fitting]
    assert times == sorted(times)
    assert plans.best is plans.fitting[0]
    assert all(p.memory.total <= PRESETS["a100-nvlink"].device.memory_bytes for p in plans.fitting)


def test_what_does_not_fit_is_listed_with_its_bytes() -> None:
    plans = plan(SMALL, "a100-nvlink", ranks=4, batch=16, memory_cap=1e8)
    assert not plans.fitting
    assert all(t.needs_bytes > 1e8 for t in plans.too_large)
    assert "of 0.1 GB" in str(plans.too_large[0])
    with pytest.raises(ValueError, match="no split fits; the smallest is"):
        _ = plans.best


def test_where_nothing_is_legal_the_best_says_so() -> None:
    with pytest.raises(ValueError, match="no split is legal for this model and batch"):
        _ = plan(SMALL, "a100-nvlink", ranks=11, batch=7).best


@pytest.mark.parametrize(("options", "says"), [
    ({"ranks": 0}, "ranks must be at least 1, and is 0"),
    ({"ranks": 1.5}, "ranks must be a whole number, not 1.5"),
    ({"ranks": True}, "ranks must be a whole number, not True"),
    ({"ranks": "8"}, "ranks must be a whole number, not '8'"),
    ({"batch": -8}, "batch must be at least 1, and is -8"),
    ({"ranks": 2**61}, "ranks must be at most 1,048,576, and is 2,305,843"),
    ({"memory_cap": "80 GB"}, "memory_cap must be a number, not '80 GB'"),
    ({"memory_cap": float("nan")}, "memory_cap must be a number, not nan"),
    ({"memory_cap": -5}, "memory_cap must be above 0, and is -5"),
    ({"candidates": ["dp 8"]}, "a candidate must be a Split, not 'dp 8'"),
    ({"hardware": "abacus"}, "no hardware preset 'abacus'"),
    ({"hardware": 3}, "no hardware preset 3"),
])  # fmt: skip
def test_a_plan_that_nothing_could_answer_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(**({"model": SMALL, "hardware": "a100-nvlink", "ranks": 8, "batch": 64} | options))


def test_a_gpt_and_a_transformer_are_told_apart() -> None:
    with pytest.raises(TypeError, match="plan takes a Transformer"):
        plan(GPTConfig(), "a100-nvlink", 8, 64)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rank_splits takes a GPTConfig"):
        rank_splits(SMALL, "a100-nvlink", 4, 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a GPTConfig, not 'small'"):
        Transformer.of("small")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a plan is made for a"):
        predict(GPTConfig(), Split(8), "a100-nvlink")  # type: ignore[arg-type]


SHAPE = {"layers": 2, "width": 64, "heads": 4, "vocab": 256, "seq": 64}


@pytest.mark.parametrize(("options", "says"), [
    ({"layers": 0}, "Transformer.layers must be at least 1, and is 0"),
    ({"width": -64}, "Transformer.width must be at least 1, and is -64"),
    ({"seq": 64.0}, "Transformer.seq must be a whole number, not 64.0"),
    ({"heads": False}, "Transformer.heads must be a whole number, not False"),
    ({"vocab": "256"}, "Transformer.vocab must be a whole number, not '256'"),
    ({"ffn": -1}, "Transformer.ffn must be at least 0, and is -1"),
    ({"width": 66}, "width 66 does not divide into 4 heads"),
    ({"kv_heads": 3}, "4 heads do not divide into groups that share 3"),
    ({"experts": 2, "top_k": 3}, "top_k = 3 of 2 experts"),
    ({"experts": -2}, "Transformer.experts must be at least 0, and is -2"),
])  # fmt: skip
def test_a_shape_that_no_model_has_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Transformer(**(SHAPE | options))
    if not says.startswith("Transformer.ffn"):  # 0 or what is left out means four times the width in both
        with pytest.raises(ValueError, match=says.replace("Transformer", "GPTConfig")):
            GPTConfig(**(SHAPE | options))


@pytest.mark.parametrize(("make", "says"), [
    (lambda: Device("d", 0, 1, 1), "Device.peak_flops must be above 0, and is 0"),
    (lambda: Device("d", 1, 1, -1), "Device.memory_bandwidth must be above 0"),
    (lambda: Link("l", -1, 1), "Link.latency must be at least 0, and is -1"),
    (lambda: Link("l", 0, 0), "Link.bandwidth must be above 0"),
    (lambda: replace(PRESETS["cpu"], ranks_per_node=0), "Cluster.ranks_per_node must be at least 1"),
    (lambda: replace(PRESETS["cpu"], stragglers=((0, 0),)), "how many times slower a straggler is must be above 0"),
    (lambda: Efficiency(matmul=0), "Efficiency.matmul must be above 0"),
    (lambda: utilisation(1e12, 0, 8, 1e12), "seconds must be above 0, and is 0"),
    (lambda: training_days(1e9, 1e9, 0, 1e12), "ranks must be at least 1, and is 0"),
    (lambda: SMALL.hardware_flops(8, "some"), "recompute is one of none, selective, full, not 'some'"),
])  # fmt: skip
def test_hardware_and_rates_that_cannot_be_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_every_legal_product_of_axes_is_among_the_candidates() -> None:
    found = {(s.dp, s.pp, s.cp, s.tp) for s in splits(SMALL, PRESETS["a100-nvlink"], 8, 64)}
    assert found == {sizes for sizes in splits_of(8, 4) if sizes[1] <= SMALL.layers}


def test_all_products_are_found_once() -> None:
    found = splits_of(12, 2)
    assert found == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]


def test_a_large_cluster_offers_a_thousand_candidates() -> None:
    assert len(list(splits(LLAMA_405B, PRESETS["h100-nvlink-ib"], 16_384, 2048))) > 800


@pytest.mark.parametrize(("split", "says"), [
    (Split(10, dp=4), "10 sequences does not divide into dp 4"),
    (Split(8, tp=3), "16 heads do not divide over tp 3"),
    (Split(8, pp=16), "8 layers are too few for pp 16"),
    (Split(8, chunks=2), "several chunks per rank need a pipeline"),
    (Split(8, ep=2), "this model has none"),
    (Split(8, dp=0), "dp must be at least 1"),
    (Split(0), "batch must be at least 1"),
    (Split(-8), "batch must be at least 1"),
    (Split(8, pp=2, chunks=0), "chunks must be at least 1"),
    (Split(8, cp=3), "2048 tokens do not divide over cp 3"),
    (Split(8, recompute="some"), "recompute is one of none, selective, full, not 'some'"),
    (Split(8, dp=1.5), "dp must be a whole number, not 1.5"),
    (Split("8"), "batch must be a whole number, not '8'"),
    (Split(8, tp=True), "tp must be a whole number, not True"),
    (Split(8, zero=4), "zero is 0, 1, 2 or 3"),
])  # fmt: skip
def test_impossible_splits_are_refused_with_a_reason(split: Split, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        predict(SMALL, split, "a100-nvlink")


def test_the_parts_of_a_step_add_up_and_none_is_negative() -> None:
    time = predict(SMALL, Split(64, dp=2, pp=2, cp=2, tp=2), "two-nodes-100gbe").time
    parts = [time.compute, time.tensor, time.experts, time.pipeline, time.bubble, time.gradients, time.optimizer]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(time.total)


def slower_between(factor: float) -> Cluster:
    a100 = PRESETS["a100-nvlink"]
    link = type(a100.between)("slow", a100.between.latency, a100.between.bandwidth / factor)
    return Cluster("slow", a100.device, a100.inside, link)


def test_a_slow_link_between_nodes_moves_the_best_split_away_from_it() -> None:
    fast, slow = plan(SMALL, slower_between(1), 16, 64).best, plan(SMALL, slower_between(100), 16, 64).best
    assert fast.split != slow.split
    bytes_across = [Clock(SMALL, best.split, slower_between(100)).step() for best in (fast, slow)]
    assert bytes_across[1].total < bytes_across[0].total


def test_more_microbatches_shrink_the_bubble_share() -> None:
    few, many = (predict(SMALL, Split(batch, pp=4), "a100-nvlink").time for batch in (4, 64))
    assert many.bubble / many.total < few.bubble / few.total


@pytest.mark.parametrize("split", [
    Split(64, pp=4), Split(64, dp=2, pp=4, tp=2, chunks=2), Split(64, dp=4, pp=8, microbatch=2),
])  # fmt: skip
def test_the_formula_of_a_step_agrees_with_the_simulated_pipeline(split: Split) -> None:
    """But for the head, which the formula gives to the busiest stage whichever it is."""
    model = replace(SMALL, vocab=64)
    time = predict(model, split, "a100-nvlink").time
    assert timeline(model, split, "a100-nvlink").makespan == pytest.approx(time.total - time.gradients - time.optimizer, rel=0.03)


def test_a_picture_with_too_many_actions_is_refused() -> None:
    with pytest.raises(ValueError, match="make no picture"):
        timeline(SMALL, Split(65_536, pp=4), "a100-nvlink")


@pytest.mark.parametrize("sizes", [{"tp": 4}, {"cp": 4}, {"dp": 4}, {"dp": 2, "tp": 2}, {"pp": 2, "tp": 2}, {"pp": 2, "dp": 2}])
def test_traffic_of_a_plan_is_that_of_a_real_step_in_numbers_of_two_bytes(sizes: dict[str, int]) -> None:
    """Layer by layer: the difference between a deep and a shallow model, so that embedding and head drop out."""

    gradients = "+".join(name for name in ("dp", "cp") if sizes.get(name, 1) > 1)

    def planned(config: GPTConfig) -> Counter[str]:
        split = Split(8, **sizes, sequence_parallel=False)
        total: Counter[str] = Counter()
        for axis, nbytes in predict(Transformer.of(config), split, "a100-nvlink").rank_bytes.items():
            float32 = axis == "dp+cp"  # gradients are summed in 4 bytes in both
            total[gradients if float32 else axis] += nbytes if float32 else 2 * nbytes
        return total

    def stepped(config: GPTConfig) -> Counter[str]:
        job = Job(config, 8, **sizes, microbatches=8 // sizes.get("dp", 1))
        return rank_bytes(job, job.place(0))

    shallow, deep = (GPTConfig(layers=layers, width=32, heads=4, seq=32) for layers in (8, 16))
    for axis in planned(deep):
        grown, found = (of(deep)[axis] - of(shallow)[axis] for of in (planned, stepped))
        assert found == pytest.approx(grown, rel=1e-9), axis


def test_everyone_waits_for_a_straggler() -> None:
    a100, split = PRESETS["a100-nvlink"], Split(64, dp=2, pp=2, tp=2)
    even, slow, elsewhere = (
        predict(SMALL, split, replace(a100, stragglers=stragglers)).time.compute for stragglers in ((), ((5, 2.0),), ((8, 2.0),))
    )
    assert even < slow <= 2 * even
    assert elsewhere == even


def test_divisors_come_in_order_and_are_found_for_any_cluster_that_can_be_meant() -> None:
    for n in range(1, 200):
        assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]
    assert len(divisors(10**9)) == 100  # 2^9 * 5^9: (9 + 1) * (9 + 1)

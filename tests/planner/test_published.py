"""The planner against published figures: formulas exactly, step times within ten percent on average."""

import pytest

from minipar import GPT, GPTConfig
from minipar.hardware import cluster
from minipar.planner import BytesPerParam, Split, Transformer, layer_activations, memory, predict, training_days, utilisation
from minipar.planner.memory import held_layers
from tests.planner import published
from tests.planner.published import KORTHIKANTI, KORTHIKANTI_GIB, MEGATRON_2021, MEGATRON_H100, megatron, unfused

GIB = 2**30


@pytest.mark.parametrize("config", [
    GPTConfig(), GPTConfig(tied=True), GPTConfig(heads=4, kv_heads=2, ffn=100),
], ids=["untied", "tied", "shared keys"])  # fmt: skip
def test_parameters_equal_those_of_the_reference_model(config: GPTConfig) -> None:
    assert Transformer.of(config).params == sum(p.numel() for p in GPT(config).parameters())


@pytest.mark.parametrize("name", MEGATRON_2021)
def test_parameters_equal_equation_2(name: str) -> None:
    """P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)), which leaves out the last norm's 2 h."""
    l, h, heads, *_ = MEGATRON_2021[name]  # noqa: E741
    model = megatron(l, h, heads)
    equation = 12 * l * h * h * (1 + 13 / (12 * h) + (51_200 + 2048) / (12 * l * h))
    assert model.params - 2 * h == pytest.approx(equation, rel=1e-12)
    billions = MEGATRON_2021[name][7]
    assert model.params / 1e9 == pytest.approx(billions, abs=0.06 if billions > 500 else 0.011)


@pytest.mark.parametrize("name", MEGATRON_2021)
def test_flops_equal_equation_3(name: str) -> None:
    """F = 96 B s l h^2 (1 + s/(6 h) + V/(16 l h)), with everything recomputed."""
    l, h, heads, _, _, _, batch, *_ = MEGATRON_2021[name]  # noqa: E741
    s, vocab = 2048, 51_200
    equation = 96 * batch * s * l * h * h * (1 + s / (6 * h) + vocab / (16 * l * h))
    assert megatron(l, h, heads).hardware_flops(batch * s, "full") == pytest.approx(equation, rel=1e-12)


def test_training_days_equal_equation_4() -> None:
    assert training_days(175e9, 300e9, 1024, 140e12) == pytest.approx(34, abs=0.5)
    assert training_days(1008e9, 450e9, 3072, 163e12) == pytest.approx(84, abs=0.5)


@pytest.mark.parametrize(("options", "formula"), [
    ({"sequence_parallel": False}, lambda s, b, h, a, t: s * b * h * (10 + 24 / t + 5 * a * s / (h * t))),
    ({"sequence_parallel": True}, lambda s, b, h, a, t: s * b * h * (34 / t + 5 * a * s / (h * t))),
    ({"sequence_parallel": False, "recompute": "selective"}, lambda s, b, h, a, t: s * b * h * (10 + 24 / t)),
    ({"sequence_parallel": True, "recompute": "selective"}, lambda s, b, h, a, t: s * b * h * 34 / t),
    ({"sequence_parallel": False, "recompute": "full"}, lambda s, b, h, a, t: 2 * s * b * h),
], ids=["tensor", "tensor + sequence", "tensor, selective", "tensor + sequence, selective", "full"])  # fmt: skip
@pytest.mark.parametrize("t", [1, 2, 8])
def test_activations_equal_korthikanti_table_2(options: dict, formula, t: int) -> None:
    model = megatron(48, 6144, 64)
    split = Split(4, tp=t, microbatch=4, fused_attention=False, **options)
    assert layer_activations(model, split) == pytest.approx(formula(2048, 4, 6144, 64, t), rel=1e-12)


@pytest.mark.parametrize("name", KORTHIKANTI_GIB)
def test_first_stage_activations_equal_korthikanti_figure_1(name: str) -> None:
    layers, width, heads, pp, chunks, batch, microbatch, *_ = KORTHIKANTI[name]
    model, sizes = megatron(layers, width, heads), {"pp": pp, "tp": 8, "chunks": chunks, "microbatch": microbatch}
    whole = unfused(batch, **sizes, recompute="none")
    lean = unfused(batch, **sizes, recompute="selective", sequence_parallel=True)
    got = [held_layers(model, split) * layer_activations(model, split) / GIB for split in (whole, lean)]
    assert got == pytest.approx(KORTHIKANTI_GIB[name], rel=1e-3)


def test_interleaving_adds_nothing_with_one_chunk() -> None:
    model = megatron(48, 6144, 64)
    assert held_layers(model, Split(16, pp=4)) == 48
    assert held_layers(model, Split(16, pp=4, chunks=2)) == 48 * (1 + 3 / 8)


@pytest.mark.parametrize(("stage", "gigabytes"), [(1, 31.4), (2, 16.6), (3, 1.88)])
def test_model_states_equal_zero_table_1(stage: int, gigabytes: float) -> None:
    """7.5 B parameters over 64 ranks (Rajbhandari et al. 2020): 2 + 2 + 12 bytes each, sharded bit by bit."""
    per = BytesPerParam().sharded(stage, 64)
    assert 7.5 * (per.params + per.gradients + per.optimizer) == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_model_and_hardware_utilisation_are_told_apart(name: str) -> None:
    layers, width, heads, pp, _, batch, _, _, seconds, mfu, hfu = KORTHIKANTI[name]
    model, tokens = megatron(layers, width, heads), batch * 2048
    assert 100 * utilisation(model.model_flops(tokens), seconds, 8 * pp, 312e12) == pytest.approx(mfu, abs=0.2)
    assert 100 * utilisation(model.hardware_flops(tokens, "selective"), seconds, 8 * pp, 312e12) == pytest.approx(hfu, abs=0.2)


def test_palm_utilisation() -> None:
    """PaLM 540B (Chowdhery et al. 2022): 6 N + 12 L H Q T flops a token at 238,300 tokens/s on 6,144 chips of 275 Tflop/s."""
    attention = 12 * 118 * 48 * 256 * 2048
    per_token = 6 * 540.35e9
    assert 100 * utilisation(per_token * 238_300, 1, 6144, 275e12) == pytest.approx(45.7, abs=0.1)
    assert 100 * utilisation((per_token + attention) * 238_300, 1, 6144, 275e12) == pytest.approx(46.2, abs=0.1)


@pytest.mark.parametrize("name", MEGATRON_H100)
def test_h100_rows_agree_with_their_own_utilisation(name: str) -> None:
    *_, tflops, mfu = MEGATRON_H100[name]
    assert 100 * tflops * 1e12 / cluster("h100-nvlink-ib").device.peak_flops == pytest.approx(mfu, abs=0.6)


def errors() -> dict[str, float]:
    return {
        name: predict(model, split, hardware).time.total / seconds - 1 for name, model, split, hardware, seconds in published.rows()
    }


def test_step_times_are_within_ten_percent_on_average() -> None:
    found = errors()
    report = "\n".join(f"{name:40s} {100 * error:+6.1f} %" for name, error in found.items())
    mean = sum(abs(error) for error in found.values()) / len(found)
    print(f"{report}\nmean of the absolute errors: {100 * mean:.1f} %")
    assert mean < 0.10, report


@pytest.mark.parametrize("hardware", ["a100-nvlink", "h100-nvlink-ib"])
def test_each_device_is_within_ten_percent_with_its_one_set_of_constants(hardware: str) -> None:
    names = {name for name, _, _, where, _ in published.rows() if where == hardware}
    picked = [abs(error) for name, error in errors().items() if name in names]
    assert sum(picked) / len(picked) < 0.10


def test_memory_adds_up() -> None:
    whole = memory(megatron(48, 6144, 64), Split(4, tp=8, microbatch=4))
    assert whole.total == whole.params + whole.gradients + whole.optimizer + whole.activations

"""The learning rate is a function of the step, only matrices decay, and a clipped gradient is the same under every split."""

from dataclasses import replace

import pytest
import torch

from minipar import GPT, GPTConfig, Mesh, blend, data, optimizer, pacing, train
from minipar.hardware import PRESETS, Device
from minipar.parameters import full_tensor, grad_norm
from minipar.planner import Job, predict_step
from minipar.trace import tracer

SMALL = GPTConfig(layers=2, width=16, heads=2, seq=16)


def test_the_learning_rate_rises_to_its_peak_and_falls_to_what_shall_be_left():
    rates = [optimizer.learning_rate(step, 30, 0.5, warmup=5, final=0.1) for step in range(30)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates[5] == 0.5
    assert rates == sorted(rates[:5]) + sorted(rates[5:], reverse=True)
    assert rates[29] == pytest.approx(0.05)
    assert rates[17] == pytest.approx((0.5 + 0.05) / 2)  # half-way between the warm-up and the last step


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (3, 10), (2, 1)])
def test_a_run_shorter_than_its_warm_up_has_rates_too(steps, warmup):
    rates = [optimizer.learning_rate(step, steps, 1.0, warmup, 0.1) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)


@pytest.mark.parametrize("name", optimizer.OPTIMIZERS)
def test_matrices_decay_and_norms_and_biases_do_not(name):
    model = GPT(SMALL)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.build(name, model, lr=0.5, weight_decay=0.2).step()
    for key, p in model.named_parameters():
        kept = 0.9 if p.dim() >= 2 else 1.0
        torch.testing.assert_close(p.detach(), before[key] * kept)


def clipped(sizes: dict[str, int], limit: float) -> tuple[float, dict[str, torch.Tensor]]:
    mesh = Mesh(**sizes)
    layout = blend.build(SMALL, mesh, GPT(SMALL).double(), microbatches=2)
    layout.step(data.batch(0, 4, SMALL.seq))
    optimizer.clip(layout.model.parameters(), mesh, limit)
    norm = grad_norm(layout.model.parameters(), mesh).item()
    return norm, {name: full_tensor(p.grad, p, mesh) for name, p in layout.model.named_parameters()}


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_the_clip_is_by_the_norm_of_the_whole_gradient(ranks, limit):
    norm, expected = clipped({}, limit)
    assert (norm == pytest.approx(limit)) == (limit < 1)
    for sizes in ({"dp": 2}, {"tp": 2}, {"pp": 2}):
        for got_norm, gradients in ranks(2).run(clipped, sizes, limit):
            assert got_norm == pytest.approx(norm, rel=1e-10)
            for name, gradient in gradients.items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("name", optimizer.OPTIMIZERS)
def test_an_update_lasts_as_long_as_the_planner_gives_it_to_move_its_bytes(name):
    model, slow = GPT(GPTConfig()), replace(PRESETS["cpu"], device=Device("slow", 1e12, 1e9, 1e8))
    update = optimizer.build(name, model, 1e-3, 0.1)
    expected = predict_step(Job(model.config), slow).update_seconds(name)
    assert expected == pytest.approx(optimizer.moved_bytes(update) / 1e8)
    pacing.pace(slow)
    try:
        with tracer.watch() as spans:
            train.one_step(blend.build(model.config, Mesh(), model), update, data.batch(0, 2, model.config.seq), Mesh())
    finally:
        pacing.pace(None)
    assert sum(span.seconds for span in spans if span.name == "optimizer") >= expected

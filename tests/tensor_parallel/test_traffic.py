"""How often a layer communicates, in which pass, and how many bytes."""

import pytest
import torch

from minipar import GPT, GPTConfig, Mesh, tensor_parallel
from minipar.trace import Span, tracer

ROWS, SEQ, WIDTH = 2, 12, 24
FULL = ROWS * SEQ * WIDTH * 4  # bytes of one layer's activations in float32
CONFIG = GPTConfig(layers=1, width=WIDTH, heads=12, seq=SEQ)


def spans(tp: int, options: dict, half: str) -> list[tuple[str, str, float]]:
    """The communication of one half of a layer, ``(call, phase, bytes)``, forward and backward."""
    model = tensor_parallel.parallelize(GPT(CONFIG), Mesh(tp=tp)["tp"], **options)
    block = model.blocks[0]
    norm, work = {"attention": (block.norm1, block.attention), "mlp": (block.norm2, block.mlp)}[half]
    seq = SEQ // tp if options.get("sequence_parallel") else SEQ
    x = torch.randn(ROWS, seq, WIDTH, requires_grad=True)
    with tracer.watch() as seen:
        with tracer.during("forward"):
            y = x + work(norm(x))
        with tracer.during("backward"):
            y.sum().backward()
    return [(s.name, s.phase, s.nbytes) for s in sorted(seen, key=lambda s: s.phase != "forward") if _comm(s)]


def _comm(span: Span) -> bool:
    return span.lane == "comm" and span.axis == "tp"


@pytest.mark.parametrize("half", ["attention", "mlp"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "plain"])
@pytest.mark.parametrize("tp", [2, 4])
def test_one_all_reduce_forward_and_one_backward(ranks, tp, overlap, half):
    ring = 2 * (tp - 1) / tp * FULL
    for seen in ranks(tp).run(spans, tp, {"overlap": overlap}, half):
        assert seen == [("all_reduce", "forward", ring), ("all_reduce", "backward", ring)]


@pytest.mark.parametrize("half", ["attention", "mlp"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "plain"])
@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_moves_the_same_bytes(ranks, tp, overlap, half):
    part = (tp - 1) / tp * FULL
    for seen in ranks(tp).run(spans, tp, {"sequence_parallel": True, "overlap": overlap}, half):
        assert seen == [
            ("all_gather", "forward", part),
            ("reduce_scatter", "forward", part),
            ("all_gather", "backward", part),
            ("reduce_scatter", "backward", part),
        ]
        for phase in ("forward", "backward"):
            assert sum(nbytes for _, when, nbytes in seen if when == phase) == 2 * part  # those of one all-reduce


def test_gathering_again_costs_one_more_all_gather(ranks):
    for seen in ranks(2).run(spans, 2, {"sequence_parallel": True, "regather": True}, "mlp"):
        backward = sorted(call for call, phase, _ in seen if phase == "backward")
        assert backward == ["all_gather", "all_gather", "reduce_scatter"]
        assert sum(nbytes for *_, nbytes in seen) == 5 * FULL / 2


def whole_model(tp: int, options: dict) -> dict[str, int]:
    model = tensor_parallel.parallelize(GPT(CONFIG), Mesh(tp=tp)["tp"], **options)
    from minipar import data

    with tracer.watch() as seen:
        model.loss(data.batch(0, ROWS, SEQ)).backward()
    return {name: sum(s.name == name for s in seen) for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")}


def test_a_whole_step_needs_these_calls_and_no_others(ranks):
    embedding, layer, loss, head = 1, 2 + 2, 2, 1  # the loss: the greatest score, then three sums at once
    expected = {"all_reduce": embedding + layer + loss + head, "all_gather": 0, "reduce_scatter": 0, "all_to_all": 0}
    assert ranks(2).run(whole_model, 2, {}) == [expected] * 2


def test_at_size_one_nothing_is_sent(ranks):
    nothing = {"all_reduce": 0, "all_gather": 0, "reduce_scatter": 0, "all_to_all": 0}
    assert whole_model(1, {}) == whole_model(1, {"sequence_parallel": True, "regather": True}) == nothing

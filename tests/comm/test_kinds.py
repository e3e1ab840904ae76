"""The checking mode: right programs pass untouched, and each silent mistake is refused with its reason."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minipar import GPT, GPTConfig, Mesh, comm, context_parallel, data, tensor_parallel
from minipar.comm import KindError, twins
from minipar.parameters import shard


def losses(tp: dict, cp: bool) -> tuple[float, float]:
    """Of one split model, without and with checks."""
    mesh = Mesh(tp=2, cp=2 if cp else 1)
    config = GPTConfig(layers=2, width=24, heads=12, seq=12, tied=True, dropout=0.1)
    model = tensor_parallel.parallelize(GPT(config), mesh["tp"], **tp)
    batch = data.batch(0, 2, config.seq, ragged=True)
    if cp:
        context_parallel.parallelize(model, mesh["cp"])
        batch = context_parallel.cut(batch, mesh["cp"])
    torch.manual_seed(0)
    plain = model.loss(batch)
    torch.manual_seed(0)
    with comm.strict():
        checked = model.loss(batch)
    checked.backward()
    return plain.item(), checked.item()


@pytest.mark.parametrize("tp", [{}, {"sequence_parallel": True}], ids=["tensor", "sequence"])
@pytest.mark.parametrize("cp", [False, True], ids=["", "context"])
def test_a_right_model_passes_and_computes_the_same(ranks, tp, cp):
    for plain, checked in ranks(4 if cp else 2).run(losses, tp, cp):
        assert checked == pytest.approx(plain, rel=1e-6)


def split_weight(dim: int) -> nn.Parameter:
    weight = nn.Parameter(torch.ones(4, 4))
    shard(weight, "tp", dim)
    return weight


def mistakes() -> dict[str, str]:
    axis = Mesh(tp=2)["tp"]
    columns, rows, bias = split_weight(0), split_weight(1), nn.Parameter(torch.ones(4))
    x = torch.ones(2, 4)
    whole = lambda: twins.reduce(F.linear(x, rows), axis)  # noqa: E731 - a replicated value with a gradient
    partial = lambda: F.linear(x, rows)  # noqa: E731
    programs = {
        "gelu of partial": lambda: F.gelu(partial()),
        "norm of partial": lambda: F.layer_norm(partial(), (4,)),
        "product of partials": lambda: partial() * partial(),
        "bias before the sum": lambda: F.linear(x, rows, bias),
        "residual before the sum": lambda: partial() + x,
        "division by partial": lambda: x / partial(),
        "column without copy": lambda: F.linear(whole(), columns),
        "replicated meets sharded": lambda: whole()[:, :2] * twins.split(whole(), axis, 1),
        "summed twice": lambda: twins.reduce(whole(), axis),
        "copy of partial": lambda: twins.copy(partial(), axis),
        "split of partial": lambda: twins.split(partial(), axis, 1),
        "gather of partial": lambda: twins.gather(partial(), axis),
        "gather of replicated": lambda: twins.gather(whole(), axis),
        "copied twice": lambda: twins.copy(twins.copy(whole(), axis), axis),
    }
    said = {}
    for name, program in programs.items():
        with comm.strict(), pytest.raises(KindError) as refused:
            program()
        said[name] = str(refused.value)
        program()  # and without the mode nobody says a word
    return said


def test_each_silent_mistake_is_refused_with_its_reason(ranks):
    for said in ranks(2).run(mistakes):
        assert "gelu of a partial value over tp is not the sum" in said["gelu of partial"]
        assert "layer_norm of a partial value" in said["norm of partial"]
        assert "count once a rank" in said["bias before the sum"]
        assert "count once a rank" in said["residual before the sum"]
        assert "of a partial value over tp" in said["division by partial"]
        assert "twins.copy" in said["column without copy"]
        assert "twins.copy" in said["replicated meets sharded"]
        assert "takes a value that is partial or sharded; this one is replicated" in said["summed twice"]
        assert "takes a value that is replicated; this one is partial: each rank holds a part of a sum" in said["copy of partial"]
        assert "twins.reduce" in said["split of partial"]
        assert "that is sharded; this one is partial" in said["gather of partial"]
        assert "this one is replicated" in said["gather of replicated"]
        assert "this one is entered" in said["copied twice"]


def followed() -> list[str]:
    axis = Mesh(tp=2)["tp"]
    x = torch.ones(2, 4)
    with comm.strict() as mode:
        partial = F.linear(x, split_weight(1))
        summed = (partial + partial).view(4, 2).T * 0.5  # sums, views and factors keep a value partial
        entered = twins.copy(twins.reduce(partial, axis), axis)
        hidden = F.gelu(F.linear(entered, split_weight(0)))
        noted = mode.note(torch.ones(3), axis, "sharded") + 1
        return [mode.kinds(tensor)["tp"] for tensor in (partial, summed, entered, hidden, noted)]


def test_kinds_follow_the_values(ranks):
    assert ranks(2).run(followed) == [["partial", "partial", "entered", "sharded", "sharded"]] * 2


def test_an_unknown_kind_is_refused():
    with comm.strict() as mode, pytest.raises(ValueError, match="one of replicated, entered, sharded, partial, not 'whole'"):
        mode.note(torch.ones(1), Mesh()["tp"], "whole")

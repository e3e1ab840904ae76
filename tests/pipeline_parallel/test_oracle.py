"""Our tables against those of torch.distributed.pipelining, read from the generators its runtime uses.

Its drawing helper shifts the forwards of 1F1B's last stage by one, so that rank is compared up to the shift.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from minipar.pipeline_parallel import Action, build

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer", reason="a private module, torch >= 2.9")

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
SIZES = [(1, 3), (2, 4), (3, 9), (4, 8), (4, 16), (8, 24)]


def torch_table(name: str, p: int, m: int, chunks: int) -> list[list[Action]]:
    return [[ours for op in row if op for ours in _flat(op)] for row in visualizer.get_schedule_ops(name, p, m, chunks)]


def _flat(op: Any) -> Iterator[Action]:
    if op.sub_actions:
        for part in op.sub_actions:
            yield from _flat(part)
    elif op.computation_type.name in KINDS:
        yield Action(KINDS[op.computation_type.name], op.stage_index, op.microbatch_index)


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize(
    ("ours", "theirs", "chunks"),
    [
        ("gpipe", "GPipe", 1),
        ("interleaved", "Interleaved1F1B", 2),
        ("interleaved", "Interleaved1F1B", 3),
        ("dualpipe-v", "DualPipeV", 2),
    ],
)
def test_tables_are_the_same(ours: str, theirs: str, chunks: int, p: int, m: int) -> None:
    assert build(ours, p, m, chunks).rows == torch_table(theirs, p, m, chunks)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_1f1b_is_the_same_but_for_the_shifted_last_stage(p: int, m: int) -> None:
    ours, theirs = build("1f1b", p, m).rows, torch_table("1F1B", p, m, 1)
    assert ours[:-1] == theirs[:-1]
    assert [a.kind for a in ours[-1]] == [a.kind for a in theirs[-1]]
    assert [a for a in ours[-1] if a.kind == "B"] == [a for a in theirs[-1] if a.kind == "B"]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_zb_v_is_the_same_up_to_which_weight_gradient_is_paid_first(p: int, m: int) -> None:
    ours, theirs = build("zb-v", p, m).rows, torch_table("ZBVZeroBubble", p, m, 2)
    unnamed = lambda row: [("W" if a.kind == "W" else a) for a in row]  # noqa: E731
    assert list(map(unnamed, ours)) == list(map(unnamed, theirs))
    assert list(map(sorted, ours)) == list(map(sorted, theirs))

"""The text and its batches are the same for every split."""

import pytest
import torch

from minipar import data
from minipar.mesh import Axis


def test_the_text_is_real_and_long_enough() -> None:
    assert len(data.corpus()) == data.CORPUS_BYTES
    assert b"def " in data.corpus()


def test_the_same_step_gives_the_same_batch_and_another_step_another() -> None:
    first, again, other = data.batch(3, 4, 16), data.batch(3, 4, 16), data.batch(4, 4, 16)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_targets_are_the_inputs_one_token_later() -> None:
    batch = data.batch(0, 4, 16)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.total == batch.tokens == 4 * 16


def test_held_out_text_is_never_trained_on() -> None:
    cut = int(data.CORPUS_BYTES * (1 - data.HELD_OUT))
    text = torch.frombuffer(bytearray(data.corpus()), dtype=torch.uint8)
    assert torch.equal(data._split("train"), text[:cut])
    assert torch.equal(data._split("held-out"), text[cut:])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 9])
def test_parts_hold_every_row_once_and_keep_the_global_count(ranks: int) -> None:
    batch = data.batch(0, 7, 8, ragged=True)
    parts = [batch.rows_of(Axis("dp", ranks, rank, tuple(range(ranks)))) for rank in range(ranks)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
    assert sum(part.tokens for part in parts) == batch.total
    assert {part.total for part in parts} == {batch.total}


def test_ragged_rows_hold_unequal_numbers_of_targets() -> None:
    batch = data.batch(0, 8, 32, ragged=True)
    counts = (batch.targets != data.IGNORE).sum(1)
    assert counts[0] == 1
    assert len(counts.unique()) > 1
    assert batch.total == counts.sum()


@pytest.mark.parametrize(
    ("rows", "seq", "split", "says"),
    [
        (0, 8, "train", "at least one row"),
        (1, 0, "train", "at least one row"),
        (1, 5_000_000, "train", "longer than the train text"),
        (1, 8, "test", "'train' or 'held-out'"),
    ],
)
def test_bad_batches_are_refused_with_a_reason(rows: int, seq: int, split: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        data.batch(0, rows, seq, split)


def test_a_step_before_the_first_is_refused() -> None:
    with pytest.raises(ValueError, match="step must be at least 0, and is -1"):
        data.batch(-1, 1, 8)

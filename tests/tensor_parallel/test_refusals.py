"""What a model cannot be split into is refused with the reason; a group of one is as good as none."""

import pytest
import torch

from minipar import GPT, GPTConfig, Mesh, data, tensor_parallel


def said(config: dict, options: dict) -> str:
    whole = GPTConfig(**{"layers": 1, "width": 12, "heads": 6, "seq": 7, **config})
    with pytest.raises(ValueError) as refused:  # noqa: PT011, PT012 - split or run: the caller compares the message
        model = tensor_parallel.parallelize(GPT(whole), Mesh(tp=3)["tp"], **options)
        model.loss(data.batch(0, 1, whole.seq))
    return str(refused.value)


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        ({"heads": 2}, {}, "2 heads cannot be split over the 3 ranks of axis tp"),
        ({"ffn": 2}, {}, "2 outputs cannot be split over the 3 ranks of axis tp"),
        ({"vocab": 2}, {}, "2 tokens of the vocabulary cannot be split over the 3 ranks of axis tp"),
        ({}, {"sequence_parallel": True}, "7 tokens do not divide over the 3 ranks of axis tp; use another length"),
        ({}, {"regather": True}, "set sequence_parallel=True and overlap=True"),
    ],
    ids=["heads", "ffn", "vocabulary", "sequence", "options"],
)
def test_a_split_that_cannot_be_is_refused(ranks, config, options, reason):
    assert all(reason in message for message in ranks(3).run(said, config, options))


def test_a_group_of_one_changes_nothing():
    config, batch = GPTConfig(layers=1, width=12, heads=2, seq=7, tied=True), data.batch(0, 2, 7)
    expected = GPT(config)
    expected.loss(batch).backward()
    for options in ({}, {"sequence_parallel": True}, {"sequence_parallel": True, "regather": True}, {"overlap": False}):
        model = tensor_parallel.parallelize(GPT(config), Mesh()["tp"], **options)
        model.loss(batch).backward()
        assert dict(model.named_parameters()).keys() == dict(expected.named_parameters()).keys()
        for name, param in model.named_parameters():
            torch.testing.assert_close(param.grad, expected.get_parameter(name).grad)

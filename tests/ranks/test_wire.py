"""Frames and pickles on their way between the kernel and a rank."""

from __future__ import annotations

import random
import traceback
from types import FunctionType

import pytest
import torch

from course.ranks import wire
from minipar import parameters

BODIES = [b"", b"x", bytes(range(256)) * 10, b"large" * 20_000]


@pytest.mark.parametrize("longest", [1, 7, 5_000, 1_000_000])
def test_frames_come_out_whole_however_their_bytes_are_cut(longest):
    sent = [wire.Frame(kind, {"n": kind}, body) for kind, body in enumerate(BODIES)]
    data = memoryview(b"".join(bytes(piece) for frame in sent for piece in wire.pack(*frame)))
    frames, got, at, cuts = wire.Frames(), [], 0, random.Random(0)
    while at < len(data):
        size = cuts.randint(1, longest)
        got += frames.feed(data[at : at + size])
        at += size
    assert got == sent


def test_frames_that_came_keep_their_bytes_when_the_memory_they_came_in_is_used_again():
    memory = bytearray(wire.pack(1, None, b"first")[0])
    (frame,) = wire.Frames().feed(memoryview(memory))
    memory[:] = bytes(len(memory))
    assert frame.body == b"first"


def test_a_function_keeps_its_file_and_lines_on_its_way():
    def fails(x):
        return [1 / x for _ in range(1)]

    with pytest.raises(ZeroDivisionError) as caught:
        wire.loads(wire.dumps(fails))(0)
    places = [(f.name, f.filename, f.lineno) for f in traceback.extract_tb(caught.tb)]
    line = fails.__code__.co_firstlineno + 1
    assert ("fails", __file__, line) in places


def test_a_function_whose_code_holds_more_than_python_stores_travels():
    """A tool that rewrites code may put an object of its own among its constants."""
    code = (lambda: 1).__code__
    odd = FunctionType(code.replace(co_consts=(None, T)), {})
    assert wire.loads(wire.dumps(odd))() is T


class T:
    pass


def test_a_tensor_keeps_what_it_was_given():
    """What minipar notes on a parameter is how it is split: without it, a model that comes back is another one."""
    layer = torch.nn.Linear(2, 3)
    parameters.shard(layer.weight, "tp", 0)
    plain = torch.ones(2)
    plain.mate = plain
    made, tensor = wire.loads(wire.dumps((layer, plain)))
    assert parameters.spec(made.weight) == parameters.spec(layer.weight)
    assert tensor.mate is tensor


def test_a_run_costs_one_frame_to_each_rank_and_one_back(ranks, monkeypatch):
    pool, back = ranks(3), []
    feed = wire.Frames.feed

    def fed(frames, data):
        got = feed(frames, data)
        back.extend(got)
        return got

    pool.run(int)
    monkeypatch.setattr(wire.Frames, "feed", fed)
    assert pool.run(int) == [0, 0, 0]
    assert len(pool.last_run.told) == 3
    assert [frame.kind for frame in back] == [wire.DONE] * 3

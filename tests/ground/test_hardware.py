"""Hardware presets, and pacing by them."""

import pytest

from minipar import hardware, pacing
from minipar.hardware import PRESETS, Cluster, Device, Link, cluster
from minipar.pacing import Pacer

SLOW = Link("slow", latency=0.5, bandwidth=10.0)
FAST = Link("fast", latency=0.0, bandwidth=1000.0)
TOY = Cluster("toy", Device("toy", 100.0, 1e9, 50.0, efficiency=0.5), FAST, SLOW, ranks_per_node=2)


@pytest.fixture(autouse=True)
def _a_clock_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "now", lambda: 100.0)


def test_the_slowest_link_crossed_decides() -> None:
    assert TOY.link((0, 1)) is FAST
    assert TOY.link((1, 2)) is SLOW
    assert TOY.link((0, 1, 2, 3)) is SLOW


def test_device_time_is_the_longer_of_arithmetic_and_memory() -> None:
    assert TOY.device.seconds(flops=100) == 2.0  # at half of the peak
    assert TOY.device.seconds(flops=100, nbytes=500) == 10.0


def test_ring_collectives_take_their_steps_of_one_nth() -> None:
    step = 0.5 + 100 / 4 / 10
    assert TOY.collective_seconds("all_reduce", 100, range(4)) == pytest.approx(6 * step)
    assert TOY.collective_seconds("all_gather", 100, range(4)) == pytest.approx(3 * step)
    assert TOY.collective_seconds("reduce_scatter", 100, range(4)) == pytest.approx(3 * step)
    assert TOY.collective_seconds("all_reduce", 100, [2]) == 0


def test_a_link_serves_one_transfer_at_a_time() -> None:
    pacer = Pacer(TOY, rank=0)
    assert pacer.send(2, 10) == (100.0, 101.5)
    assert pacer.send(3, 10) == (101.5, 103.0)
    assert pacer.send(1, 10) == (100.0, 100.01)  # the link inside the node is another one


def test_two_senders_share_the_receivers_link() -> None:
    pacer = Pacer(TOY, rank=0)
    assert pacer.receive(2, 10, sent=100.0) == (100.0, 101.5)
    assert pacer.receive(3, 10, sent=100.0) == (101.5, 103.0)


def test_a_collective_occupies_both_directions() -> None:
    pacer = Pacer(TOY, rank=0)
    _, end = pacer.collective("all_reduce", 100, range(4), start=100.0)
    assert pacer.ready(range(4)) == end
    assert pacer.send(2, 0) == (end, end + 0.5)


def test_collectives_launched_together_follow_each_other() -> None:
    pacer = Pacer(TOY, rank=0)
    _, first = pacer.collective("all_reduce", 100, range(4), start=100.0)
    assert pacer.collective("all_reduce", 100, range(4), start=100.0) == (first, 2 * first - 100.0)


def test_unknown_presets_are_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="a100-nvlink"):
        cluster("tpu")
    assert cluster(TOY) is TOY


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_presets_are_faster_inside_a_node_than_between_nodes(preset: Cluster) -> None:
    assert preset.inside.bandwidth >= preset.between.bandwidth
    assert preset.inside.latency <= preset.between.latency
    assert 0 < preset.device.efficiency <= 1


def test_an_unpaced_process_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "wait_until", lambda moment: pytest.fail("waited"))
    pacing.pace(None)
    with pacing.compute(seconds=1000):
        pass
    assert pacing.current() is None


def test_a_paced_computation_waits_for_its_modelled_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[float] = []
    monkeypatch.setattr(pacing, "wait_until", moments.append)
    pacing.pace(TOY)
    try:
        with pacing.compute(flops=100):
            pass
        with pacing.compute(seconds=7):
            pass
    finally:
        pacing.pace(None)
    assert moments == [102.0, 107.0]
    assert hardware.cluster("cpu").name == "cpu"

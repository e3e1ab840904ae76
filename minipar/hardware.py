"""What a flop and a byte cost: devices, links and clusters.

The figures are the makers' own peaks; ``efficiency`` is the share of the peak that real training kernels reach.
Sources are given with each preset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minipar.checks import not_above_zero, not_number, not_whole, refuse


@dataclass(frozen=True)
class Device:
    """One accelerator (or CPU)."""

    name: str
    peak_flops: float  # flops per second at the training precision, dense
    memory_bytes: float
    memory_bandwidth: float  # bytes per second
    efficiency: float = 0.5  # the share of peak_flops that large matrix products reach

    def __post_init__(self) -> None:
        numbers = ("peak_flops", "memory_bytes", "memory_bandwidth", "efficiency")
        refuse(*(not_above_zero(f"Device.{name}", getattr(self, name)) for name in numbers))

    def seconds(self, flops: float, nbytes: float = 0) -> float:
        """The roofline: an operation takes as long as its arithmetic or its memory traffic, whichever is longer."""
        return max(flops / (self.peak_flops * self.efficiency), nbytes / self.memory_bandwidth)


@dataclass(frozen=True)
class Link:
    """A connection that serves one transfer at a time, busy for ``latency + bytes / bandwidth``."""

    name: str
    latency: float  # seconds
    bandwidth: float  # bytes per second in one direction

    def __post_init__(self) -> None:
        refuse(not_number("Link.latency", self.latency, 0), not_above_zero("Link.bandwidth", self.bandwidth))

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Equal devices, ``ranks_per_node`` to a node: one link inside a node, another between nodes.

    ``stragglers`` are ranks that compute slower than the others: with ``((3, 1.5),)`` rank 3 takes 1.5 times as long.
    """

    name: str
    device: Device
    inside: Link
    between: Link
    ranks_per_node: int = 8
    stragglers: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        refuse(not_whole("Cluster.ranks_per_node", self.ranks_per_node))
        for rank, slower in self.stragglers:
            refuse(not_whole("a straggler's rank", rank, 0), not_above_zero("how many times slower a straggler is", slower))

    def device_of(self, rank: int) -> Device:
        """The device under ``rank`` (global)."""
        slower = dict(self.stragglers).get(rank, 1.0)
        flops, bandwidth = self.device.peak_flops / slower, self.device.memory_bandwidth / slower
        return self.device if slower == 1 else replace(self.device, peak_flops=flops, memory_bandwidth=bandwidth)

    def link(self, ranks: Sequence[int]) -> Link:
        """The slowest link that a transfer among ``ranks`` (global) crosses."""
        nodes = {rank // self.ranks_per_node for rank in ranks}
        return self.inside if len(nodes) <= 1 else self.between

    def collective_seconds(self, op: str, nbytes: float, ranks: Sequence[int]) -> float:
        """Seconds of a bandwidth-optimal (ring) collective over ``ranks``; ``nbytes`` is the full buffer.

        An all-reduce takes ``2(n-1)`` steps of ``nbytes / n``; all-gather and reduce-scatter take half as many.
        """
        n = len(ranks)
        if n == 1:
            return 0.0
        link = self.link(ranks)
        if op == "all_to_all":  # nbytes is here what leaves one rank, in one message to each of the others
            return (n - 1) * link.latency + nbytes / link.bandwidth
        steps = {
            "all_reduce": 2 * (n - 1),
            "all_gather": n - 1,
            "reduce_scatter": n - 1,
            "broadcast": n - 1,
            "barrier": 2 * (n - 1),
        }[op]
        return steps * link.seconds(nbytes / n)


GB = 1e9
_ETHERNET_100 = Link("100 Gb Ethernet", latency=10e-6, bandwidth=12.5 * GB)
_WIFI = Link("Wi-Fi", latency=2e-3, bandwidth=0.05 * GB)
_LOOPBACK = Link("loopback", latency=30e-6, bandwidth=2 * GB)
_A100 = Device("A100 80 GB", peak_flops=312e12, memory_bytes=80 * GB, memory_bandwidth=2039 * GB)
_H100 = Device("H100 SXM", peak_flops=989e12, memory_bytes=80 * GB, memory_bandwidth=3350 * GB)

PRESETS = {
    # two laptop cores and their memory; loopback TCP between processes
    "cpu": Cluster("cpu", Device("CPU, 2 cores", 0.1e12, 16 * GB, 20 * GB), _LOOPBACK, _LOOPBACK, ranks_per_node=1),
    # 802.11ac in a home: about 400 Mb/s of payload, milliseconds a hop
    "laptop-wifi": Cluster("laptop-wifi", Device("laptop CPU", 0.2e12, 16 * GB, 50 * GB), _WIFI, _WIFI, ranks_per_node=1),
    # A100 data sheet (NVIDIA, 2021): 312 Tflop/s in bf16, 2,039 GB/s; PCIe 4.0 x16 inside a node: 32 GB/s each way
    "two-nodes-100gbe": Cluster("two-nodes-100gbe", _A100, Link("PCIe 4.0 x16", 5e-6, 32 * GB), _ETHERNET_100, ranks_per_node=4),
    # third-generation NVLink: 600 GB/s in both directions together, so 300 GB/s each way; HDR InfiniBand, 25 GB/s per GPU
    "a100-nvlink": Cluster("a100-nvlink", _A100, Link("NVLink 3", 3e-6, 300 * GB), Link("HDR InfiniBand", 5e-6, 25 * GB)),
    # H100 data sheet (NVIDIA, 2023): 989 Tflop/s in bf16, 3,350 GB/s, NVLink 900 GB/s both ways; NDR InfiniBand, 50 GB/s per GPU
    "h100-nvlink-ib": Cluster("h100-nvlink-ib", _H100, Link("NVLink 4", 3e-6, 450 * GB), Link("NDR InfiniBand", 5e-6, 50 * GB)),
}


def cluster(which: str | Cluster) -> Cluster:
    """The preset of that name; a ``Cluster`` of your own is handed back as it is."""
    if isinstance(which, Cluster):
        return which
    if not isinstance(which, str) or which not in PRESETS:
        raise ValueError(f"no hardware preset {which!r}; choose one of {', '.join(PRESETS)}, or pass a minipar.hardware.Cluster")
    return PRESETS[which]

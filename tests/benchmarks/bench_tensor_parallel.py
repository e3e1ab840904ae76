"""Tensor parallelism against torch's own: ``python tests/benchmarks/bench_tensor_parallel.py``. Measured on this machine.

The same stack of attention and MLP blocks on two ranks, split by ``minipar.tensor_parallel`` and by torch's
``parallelize_module`` (Colwise- and RowwiseParallel, SequenceParallel; one gathered input for queries, keys and values, as torch's
own examples do). Steps of both alternate in one run; a ratio below 1 means that ours takes less time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from course import Ranks
from minipar import GPTConfig, Mesh
from minipar.model import Block
from minipar.tensor_parallel import Region, TensorParallelAttention, TensorParallelMLP

RANKS, ROWS, WARM, PAIRS = 2, 4, 3, 25
CONFIG = GPTConfig(layers=3, width=512, heads=8, seq=128)


def ours(blocks: nn.Sequential, region: Region) -> nn.Sequential:
    for block in blocks:
        block.attention = TensorParallelAttention(block.attention, region)
        block.mlp = TensorParallelMLP(block.mlp, region)
    return blocks


def torchs(blocks: nn.Sequential, sequence: bool) -> nn.Sequential:
    mesh = init_device_mesh("cpu", (RANKS,))
    outside = Shard(1) if sequence else Replicate()
    whole = {"input_layouts": (outside,), "desired_input_layouts": (Replicate(),)}
    plan = {
        "attention": PrepareModuleInput(**whole),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=outside),
        "mlp": PrepareModuleInput(**whole),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=outside),
    }
    if sequence:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    for block in blocks:
        parallelize_module(block, mesh, plan)
    return blocks


def step(blocks: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """One forward and backward pass; returns the gradient of the input."""
    leaf = x.clone().requires_grad_()
    blocks.zero_grad()
    blocks(leaf).square().sum().backward()
    return leaf.grad


def seconds(work: Callable[[], object]) -> float:
    dist.barrier()
    start = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - start


def largest_difference(a: nn.Sequential, b: nn.Sequential) -> float:
    """Of the gradients of both after a step on the same input, relative to the largest of all."""
    theirs = dict(b.named_parameters())
    differences, sizes = [], []
    for name, param in a.named_parameters():
        other = theirs[name].grad
        other = other.to_local() if isinstance(other, DTensor) else other
        if "norm" not in name and not name.endswith((".o.bias", ".down.bias")):  # torch sums the replicated ones' at once, we later
            differences.append((param.grad - other).abs().max())
            sizes.append(other.abs().max())
    return (torch.stack(differences).max() / torch.stack(sizes).max()).item()


def compare(sequence: bool) -> dict[str, list[float] | float]:
    torch.manual_seed(0)
    whole = nn.Sequential(*(Block(CONFIG) for _ in range(CONFIG.layers)))
    x = torch.randn(ROWS, CONFIG.seq, CONFIG.width)
    axis = Mesh(tp=RANKS)["tp"]
    x = x.chunk(RANKS, 1)[axis.rank].contiguous() if sequence else x
    contenders = {
        "ours": ours(deepcopy(whole), Region(axis, sequence)),
        "ours, no overlap": ours(deepcopy(whole), Region(axis, sequence, overlap=False)),
        "torch": torchs(deepcopy(whole), sequence),
    }
    inputs = {name: step(blocks, x) for name, blocks in contenders.items()}
    torch.testing.assert_close(inputs["ours"], inputs["torch"], rtol=1e-3, atol=1e-3)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(WARM + PAIRS):
        names = list(contenders) if i % 2 else list(contenders)[::-1]
        for name in names:
            spent = seconds(lambda name=name: step(contenders[name], x))
            if i >= WARM:
                taken[name].append(spent)
    return {**taken, "difference": largest_difference(contenders["ours"], contenders["torch"])}


def main() -> None:
    with Ranks(RANKS) as ranks:
        size = f"{CONFIG.layers} blocks, width {CONFIG.width}, {ROWS} x {CONFIG.seq} tokens"
        print(f"{size}, {RANKS} ranks on gloo, {PAIRS} alternating steps")
        for label, sequence in (("tensor parallel", False), ("tensor and sequence parallel", True)):
            taken = ranks.run(compare, sequence)[0]
            print(f"\n{label}: gradients of both agree to {taken.pop('difference'):.0e}")
            for name, times in taken.items():
                ratios = sorted(a / b for a, b in zip(times, taken["torch"], strict=True))
                low, high = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
                print(
                    f"  {name:<18} {statistics.median(times) * 1e3:7.1f} ms a step   "
                    f"ratio to torch: {statistics.median(ratios):.3f} (half of them {low:.2f} to {high:.2f})"
                )


if __name__ == "__main__":
    main()

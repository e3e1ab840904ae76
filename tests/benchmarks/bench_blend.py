"""Two axes at once, against torch's own parts put together: ``python -m tests.benchmarks.bench_blend``. Measured on this machine.

The same GPT and global batch on four ranks: data x tensor (``parallelize_module``, then ``DistributedDataParallel``), data x
pipeline (``DistributedDataParallel`` inside a ``PipelineStage``) and tensor x pipeline. Steps of forward, backward and gradient
sync, in turns in one run; target: a ratio of step times <= 1.0.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several ranks share few cores

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch.distributed.pipelining as torchs
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from minipar import GPT, GPTConfig, Mesh, blend, data
from minipar.data import Batch
from tests.benchmarks.pairs import alternate, on_ranks, summary

RANKS, ROUNDS = 4, 15
SHAPES = {  # one where a step is mostly bookkeeping, one where it is mostly matrix products
    "small": (GPTConfig(layers=4, width=64, heads=4, seq=64), 8),
    "larger": (GPTConfig(layers=4, width=256, heads=4, seq=128), 16),
}
SPLITS = {"dp x tp": {"dp": 2, "tp": 2}, "dp x pp": {"dp": 2, "pp": 2}, "pp x tp": {"pp": 2, "tp": 2}}
MICROBATCHES = 4  # in a pipeline


def torchs_tensor(model: GPT, mesh: Any) -> None:
    """Megatron's cut in torch's words; scores stay split, as ours do."""
    whole = {"input_layouts": (Replicate(),), "desired_input_layouts": (Replicate(),)}
    block = {
        "attention": PrepareModuleInput(**whole),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(),
        "mlp": PrepareModuleInput(**whole),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    parallelize_module(model.embedding, mesh, {"tokens": RowwiseParallel(input_layouts=Replicate())})
    for each in model.blocks:
        parallelize_module(each, mesh, block)
    parallelize_module(model.head, mesh, {"output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})


def share_of_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum")


Held = dict[str, nn.Parameter]


def torch_step(model: GPT, sizes: dict[str, int], batch: Batch) -> tuple[Held, Callable[[], object]]:
    """What this rank holds, by the reference's names, and a step of it."""
    names = [name for name in ("pp", "dp", "tp") if name in sizes]
    mesh = init_device_mesh("cpu", tuple(sizes[name] for name in names), mesh_dim_names=tuple(names))
    if "tp" in sizes:
        torchs_tensor(model, mesh["tp"])
    dp = sizes.get("dp", 1)
    own = batch.parts(dp)[mesh["dp"].get_local_rank() if dp > 1 else 0]
    if "pp" in sizes:
        return _pipeline(model, sizes, mesh, own, dp)
    _pre_dp_module_transform(model)
    held = dict(model.named_parameters())  # the transform takes them out of the module in its first forward
    replica = DistributedDataParallel(model, process_group=mesh["dp"].get_group(), gradient_as_bucket_view=True)

    def step() -> None:
        _clear(held)
        with loss_parallel():
            (share_of_loss(replica(own.inputs), own.targets) * (dp / own.total)).backward()

    return held, step


def _clear(held: Held) -> None:
    for param in held.values():
        param.grad = None


def _pipeline(model: GPT, sizes: dict[str, int], mesh: Any, own: Batch, dp: int) -> tuple[Held, Callable[[], object]]:
    layers, index = model.layers(), mesh["pp"].get_local_rank()
    half = blend.build(model.config, Mesh(**sizes), GPT(model.config), microbatches=MICROBATCHES).engine.pipeline.sizes[0]  # type: ignore[attr-defined]
    module: nn.Module = nn.Sequential(*(layers[half:] if index else layers[:half]))
    if dp > 1:
        module = DistributedDataParallel(module, process_group=mesh["dp"].get_group(), gradient_as_bucket_view=True)
    stage = torchs.PipelineStage(module, index, 2, own.inputs.device, group=mesh["pp"].get_group())
    loss = lambda scores, targets: share_of_loss(scores, targets) * (dp / own.total)  # noqa: E731
    schedule = torchs.Schedule1F1B(stage, MICROBATCHES, loss_fn=loss, scale_grads=False)

    held = dict(model.named_parameters())

    def step() -> None:
        _clear(held)
        with loss_parallel():
            schedule.step(*([] if index else [own.inputs]), **({"target": own.targets} if index else {}))

    return held, step


def contest(split: str, shape: str) -> tuple[list[tuple[float, float]], float]:
    config, rows = SHAPES[shape]
    sizes, batch, model = SPLITS[split], data.batch(0, rows, config.seq), GPT(config)
    layout = blend.build(config, Mesh(**sizes), deepcopy(model), microbatches=MICROBATCHES if "pp" in sizes else 1)

    def ours() -> None:
        layout.model.zero_grad()
        layout.step(batch)

    theirs, step = torch_step(model, sizes, batch)
    ours()
    step()
    return alternate(ours, step, ROUNDS), _largest_difference(layout.model, theirs)


def _largest_difference(ours: nn.Module, wanted: Held) -> float:
    """Both made the same gradients, or the race is off: relative to the largest of all."""
    differences, largest = [0.0], 0.0
    for name, p in ours.named_parameters():
        grad = wanted[name].grad
        if p.grad is not None and grad is not None:
            cut = wanted[name].data
            local = grad.redistribute(placements=cut.placements).to_local() if isinstance(cut, DTensor) else grad
            differences.append(float((p.grad - local).abs().max()))
            largest = max(largest, float(local.abs().max()))
    return max(differences) / largest


def main() -> None:
    print(f"step time on {RANKS} ranks, ours | torch's parts put together (measured, gloo, CPU)")
    for shape in SHAPES:
        for split in SPLITS:
            everyone = on_ranks(RANKS, contest, split, shape)
            pair, worst = summary([times for times, _ in everyone]), max(worst for _, worst in everyone)
            print(f"  {shape:7} {split:8} {pair}  largest gradient difference {worst:.0e}", flush=True)
            if not worst < 1e-3:
                raise SystemExit("the gradients differ: the two did not do the same work")


if __name__ == "__main__":
    main()

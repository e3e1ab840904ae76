"""Cutting a model into stages: which layers each rank keeps, under which names, and which parameters two ranks share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from minipar import comm
from minipar.mesh import Axis
from minipar.parameters import spec
from minipar.pipeline_parallel.partition import partition


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers a pipeline may cut between: those of a GPT, or of any ``nn.Sequential``."""
    if isinstance(model, nn.Sequential):
        return list(model)
    layers = getattr(model, "layers", None)
    if not callable(layers):
        raise TypeError(f"a pipeline cuts an nn.Sequential, or a model whose layers() lists its layers in order, not {type(model)}")
    return list(layers())


def stage_layers(layers: Sequence[nn.Module], stages: int, sizes: Sequence[int] | None, costs: Sequence[float]) -> list[range]:
    """Which layers go to each stage. ``sizes``: how many, by stage; left out, so that the costliest stage costs the least."""
    sizes = partition(costs, stages) if sizes is None else list(sizes)
    if len(sizes) != stages or sum(sizes) != len(layers) or min(sizes) < 1:
        raise ValueError(f"sizes {list(sizes)}: {stages} numbers, each at least 1, that add up to the {len(layers)} layers")
    ends = list(accumulate(sizes, initial=0))
    return [range(a, b) for a, b in pairwise(ends)]


def local_part(model: nn.Module, kept: Sequence[nn.Module]) -> nn.Module:
    """A module that holds only the layers ``kept``, with the names that their parameters have in ``model``.

    A tied parameter has the name of its first place in the model, also where only its second place is kept.
    """
    part = nn.Module()
    names = {id(param): name for name, param in model.named_parameters()}
    paths = {name: module for name, module in model.named_modules() if any(module is layer for layer in kept)}
    for path, layer in paths.items():
        for own, param in layer.named_parameters():
            name = names[id(param)]
            if name != f"{path}.{own}":  # tied to a layer that may be kept elsewhere
                home, _, last = name.rpartition(".")
                _node(part, home).register_parameter(last, param)
    for path, layer in paths.items():
        home, _, last = path.rpartition(".")
        _node(part, home).add_module(last, layer)
    return part


def _node(root: nn.Module, path: str) -> nn.Module:
    for name in filter(None, path.split(".")):
        if not hasattr(root, name):
            root.add_module(name, nn.Module())
        root = getattr(root, name)
    return root


def tied_across(stages: Sequence[Sequence[nn.Module]], placement: Sequence[int]) -> list[tuple[nn.Parameter, list[int]]]:
    """Parameters that several ranks hold, such as an embedding that is also the head, with those ranks; noted as copies."""
    holders: dict[int, set[int]] = defaultdict(set)
    found: dict[int, nn.Parameter] = {}
    for stage, layers in enumerate(stages):
        for layer in layers:
            for param in layer.parameters():
                holders[id(param)].add(placement[stage])
                found[id(param)] = param
    tied = [(found[key], sorted(ranks)) for key, ranks in holders.items() if len(ranks) > 1]
    for param, ranks in tied:
        spec(param).copies = len(ranks)
    return tied


def sum_tied(tied: Sequence[tuple[nn.Parameter, list[int]]], axis: Axis) -> None:
    """Give every holder of a tied parameter the sum of all holders' gradients, added in the same order: bitwise the same."""
    for param, ranks in tied:
        if axis.rank not in ranks:
            continue
        own = torch.zeros_like(param) if param.grad is None else param.grad
        others = [rank for rank in ranks if rank != axis.rank]
        buffers: list[Tensor] = [torch.empty_like(own) for _ in others]
        received = comm.exchange([(own, rank) for rank in others], list(zip(buffers, others, strict=True)), axis)
        by_rank = dict(zip(others, received, strict=True)) | {axis.rank: own}
        total = by_rank[ranks[0]].clone()
        for rank in ranks[1:]:
            total += by_rank[rank]
        param.grad = total

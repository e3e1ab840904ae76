"""Put the experts of a whole model on a mesh."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minipar.expert_parallel.dispatch import experts_by_rank
from minipar.expert_parallel.layer import Axes, MoE, moe_layers
from minipar.mesh import Mesh
from minipar.parameters import shard, sum_over


def parallelize(model: nn.Module, mesh: Mesh, sequence_parallel: bool = False) -> nn.Module:
    """Keep only this rank's experts of ``model``, in place; it is given whole, and equal on every rank. Names stay as they are.

    The experts are split over ``mesh["ep"]``; ranks along ``mesh["edp"]`` hold the same ones. On tensor-parallel ranks, which
    hold the same tokens, there are two ways:

    * ``ep == 1``: every expert is cut inside, along ``ffn``, over "tp" (column, then row parallel);
    * ``ep > 1``: experts stay whole, and each "tp" rank routes its share of the tokens.

    ``sequence_parallel`` says that activations between attention and MLP are already split over "tp": nothing is replicated then,
    and experts stay whole. Raises ValueError where experts or ``ffn`` do not fit the mesh.
    """
    layers = moe_layers(model)
    replicated = mesh.sizes["tp"] > 1 and not sequence_parallel
    inside = replicated and mesh.sizes["ep"] == 1
    for name, layer in ((name, module) for name, module in model.named_modules() if isinstance(module, MoE)):
        layer.name = name
    for layer in layers:
        over = ("dp", "cp") if inside or mesh.sizes["tp"] == 1 else ("dp", "cp", "tp")
        none = Axes()
        layer.axes = Axes(
            expert=none.expert if inside else mesh["ep"],
            data=mesh[over],
            split=mesh["tp"] if replicated and not inside else none.split,
            inside=mesh["tp"] if inside else none.inside,
        )
        for param in layer.router.parameters():
            sum_over(param, over)
        if layer.shared is not None and sequence_parallel:
            for param in layer.shared.parameters():
                sum_over(param, ("dp", "cp", "tp"))
        if inside:
            _cut_inside(layer, mesh)
        else:
            _keep_own_experts(layer, mesh)
    return model


def _keep_own_experts(layer: MoE, mesh: Mesh) -> None:
    axis = mesh["ep"]
    layer.sizes = experts_by_rank(sum(layer.sizes), axis.size)
    for name, whole in list(layer.experts.named_parameters()):
        param = _replace(layer.experts, name, whole.detach().split(layer.sizes)[axis.rank])
        sum_over(param, ("edp",))
        if axis.size > 1:
            shard(param, "ep", 0, layer.sizes)


def _cut_inside(layer: MoE, mesh: Mesh) -> None:
    axis = mesh["tp"]
    ffn = layer.experts.gate.shape[2]
    if ffn % axis.size:
        raise ValueError(f"experts of hidden width {ffn} cannot be cut over {axis.size} tensor-parallel ranks: choose a multiple")
    for name, dim in (("gate", 2), ("up", 2), ("down", 1)):
        whole = layer.experts.get_parameter(name)
        shard(_replace(layer.experts, name, whole.detach().chunk(axis.size, dim)[axis.rank]), "tp", dim)


def _replace(module: nn.Module, name: str, piece: Tensor) -> nn.Parameter:
    """``piece``, in memory of its own, as the module's parameter of that name."""
    param = nn.Parameter(piece.clone(memory_format=torch.contiguous_format))
    setattr(module, name, param)
    return param

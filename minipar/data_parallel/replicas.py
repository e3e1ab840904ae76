"""Copies of a model must start equal, and what is no parameter must be kept equal."""

from __future__ import annotations

from torch import nn

from minipar import comm
from minipar.mesh import Mesh
from minipar.parameters import spec


def start_equal(model: nn.Module, mesh: Mesh) -> None:
    """Give every copy of a parameter the values of the first rank that holds one, and every buffer likewise."""
    for param in model.parameters():
        comm.broadcast_(param.data, mesh[spec(param).sum_over])
    broadcast_buffers(model, mesh)


def broadcast_buffers(model: nn.Module, mesh: Mesh) -> None:
    """Give every rank the first rank's buffers, such as running means. No gradient keeps them equal, so this has to."""
    for buffer in model.buffers():
        comm.broadcast_(buffer, mesh["dp", "cp"])

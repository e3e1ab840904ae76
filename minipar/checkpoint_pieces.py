"""Tensors in pieces, saved and loaded by ``torch.distributed.checkpoint``, for any split.

Every rank says which part of which tensor it holds. What is saved is the whole tensor, whoever held the pieces; what is loaded is
the part that a rank asks for, cut from however many saved pieces it spans. So a checkpoint knows nothing of the split that made it.

    saved by tp 2        loaded by pp 2: whole        loaded by tp 3
    | rank 0 | rank 1 |  |      rank 0     |          | rank 0 | rank 1 | rank 2 |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from minipar.mesh import Axis


@dataclass(frozen=True)
class Piece:
    """This rank's part of a tensor of shape ``whole``; its first element is the whole's element ``offset``."""

    tensor: Tensor
    offset: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def all_of(cls, x: Tensor) -> Piece:
        return cls(x, (0,) * x.dim(), tuple(x.shape))

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.offset), self.tensor.shape)


def save(pieces: dict[str, Piece], folder: Path, world: Axis) -> None:
    """Write the pieces of all ranks; of equal pieces, one rank writes. Call it on every rank of ``world``.

    Raises ``CheckpointException`` on every rank if any rank failed.
    """
    writer = dcp.FileSystemWriter(folder, sync_files=True)
    dcp.save(dict(pieces), storage_writer=writer, planner=_Saving(), no_dist=world.size == 1)


def load(pieces: dict[str, Piece], folder: Path, world: Axis) -> None:
    """Fill the tensors of ``pieces``, in place, from what any split saved."""
    dcp.load(dict(pieces), storage_reader=dcp.FileSystemReader(folder), planner=_Loading(), no_dist=world.size == 1)


def saved(folder: Path) -> Metadata:
    """What a checkpoint holds: ``state_dict_metadata`` maps each name to the form of its tensor."""
    return dcp.FileSystemReader(folder).read_metadata()


class _Saving(dcp.DefaultSavePlanner):
    """torch's own plan, which leaves out what another rank writes already, from our pieces."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_write(name, piece) for name, piece in self.state_dict.items() if piece.tensor.numel()])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].tensor.detach()


def _write(name: str, piece: Piece) -> WriteItem:
    data = TensorWriteData(piece.chunk, TensorProperties.create_from_tensor(piece.tensor), torch.Size(piece.whole))
    return WriteItem(MetadataIndex(name, piece.offset), WriteItemType.SHARD, tensor_data=data)


class _Loading(dcp.DefaultLoadPlanner):
    def set_up_planner(self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan([item for name, piece in self.state_dict.items() for item in self._reads(name, piece)])

    def _reads(self, name: str, piece: Piece) -> list[ReadItem]:
        assert self.metadata is not None
        form: Any = self.metadata.state_dict_metadata.get(name)
        if form is None:
            raise KeyError(f"the checkpoint holds no {name}")
        if form.size != torch.Size(piece.whole):
            raise ValueError(f"{name} is {list(form.size)} in the checkpoint, and {list(piece.whole)} here")
        items = create_read_items_for_chunk_list(name, form, [piece.chunk]) if piece.tensor.numel() else []
        if sum(prod(item.lengths) for item in items) != piece.tensor.numel():
            raise ValueError(f"the checkpoint lacks a part of {name}")
        return items

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].tensor.detach()

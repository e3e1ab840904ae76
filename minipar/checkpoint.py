"""Checkpoints that survive whatever ends the run while they are written.

A checkpoint is written to a folder of another name and renamed when all of it is on the disk. A rename happens or does not: what
bears the name of a checkpoint is complete.

    runs/first/.unfinished-step-00000300      being written, or left behind by a run that was killed: never read
    runs/first/step-00000200                  complete, and so the one to go on from
    runs/first/step-00000100                  complete; older ones are removed

A batch and the masks of dropout are functions of the seed and the step (``minipar.data``, ``Blend.seed``). So the step is all there
is to remember of the position in the data and of the random state.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from minipar import checkpoint_pieces as pieces
from minipar import comm
from minipar.checkpoint_pieces import Piece
from minipar.checks import RefusedError
from minipar.mesh import Axis, Mesh
from minipar.parameters import place
from minipar.unfinished import marked, on_disk, remove, sweep

T = TypeVar("T")
KEPT = 2  # complete checkpoints, the newest


@dataclass
class Progress:
    """How far a run has come, under any split. ``run`` is what a resumed run must have in common with the saved one."""

    run: dict[str, Any]
    step: int = 0  # steps done
    losses: list[float] = field(default_factory=list)  # by step
    held_out: list[tuple[int, float]] = field(default_factory=list)  # (steps done, loss on held-out text)


class Checkpoints:
    """The checkpoints of one run, in a folder that every rank sees. Every rank must call each method."""

    def __init__(self, folder: Path, world: Axis) -> None:
        self.folder, self.world = folder, world

        def open_folder() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)

        self._first_rank(open_folder)

    def latest(self) -> Path | None:
        """The last complete one."""
        return self._first_rank(lambda: latest(self.folder))

    def save(self, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, mesh: Mesh) -> None:
        """Write parameters, optimizer state and progress; afterwards this is the one to go on from."""
        final = self.folder / f"step-{progress.step:08}"
        unfinished = marked(final)

        def begin() -> None:
            unfinished.mkdir()
            (unfinished / "progress.json").write_text(json.dumps(asdict(progress), indent=1) + "\n")
            on_disk(unfinished / "progress.json")

        def finish() -> None:
            on_disk(unfinished)
            unfinished.rename(final)
            on_disk(self.folder)
            for old in complete(self.folder)[:-KEPT]:
                remove(old)

        try:
            self._first_rank(begin)
            self._refuse_unseen(unfinished)
            with _told(f"cannot save to {self.folder}"):
                pieces.save(_state(model, optimizer, mesh), unfinished, self.world)
            self._first_rank(finish)
        except RefusedError:
            self._first_rank(lambda: shutil.rmtree(unfinished, ignore_errors=True))
            raise

    def load(self, path: Path, run: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, mesh: Mesh) -> Progress:
        """Fill ``model`` and ``optimizer`` with what was saved under this split or another."""
        cannot = f"cannot load {path}"
        with _with_remedy(path):
            progress = self._first_rank(lambda: _progress(path), cannot)
            metadata = self._first_rank(lambda: pieces.saved(path), cannot)
        for name, own in run.items():
            if progress.run.get(name) != own:
                raise RefusedError(f"{path} comes from a run with another {name}: {_apart(progress.run.get(name), own)}")
        progress.held_out = [(step, loss) for step, loss in progress.held_out]
        _make_room(optimizer, model, metadata)
        with _with_remedy(path), _told(cannot):
            pieces.load(_state(model, optimizer, mesh), path, self.world)
        return progress

    def _refuse_unseen(self, path: Path) -> None:
        """On hosts that do not share the folder, each would keep a part of the checkpoint, and none the whole."""
        blind = [rank for rank, seen in enumerate(comm.gather_objects(path.is_dir(), self.world)) if not seen]
        if blind:
            raise RefusedError(f"rank {blind[0]} does not see {path.parent}: checkpoints need a folder that all ranks share")

    def _first_rank(self, action: Callable[[], T], cannot: str = "") -> T:
        """Done by the first rank of all. Every rank gets the result, or is refused where it failed: it ``cannot`` do what."""
        outcome: Any = None
        if self.world.rank == 0:
            try:
                outcome = action()
            except Exception as e:
                outcome = e
        outcome = comm.gather_objects(outcome, self.world)[0]
        if isinstance(outcome, Exception):
            cannot = cannot or f"cannot work in {self.folder}"
            raise RefusedError(f"{cannot}: {getattr(outcome, 'strerror', None) or outcome}") from outcome
        return outcome


def complete(folder: Path) -> list[Path]:
    """All complete checkpoints in ``folder``, in order of their steps."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def latest(folder: Path) -> Path | None:
    return next(reversed(complete(folder)), None)


def _progress(path: Path) -> Progress:
    text = (path / "progress.json").read_text()
    try:
        return Progress(**json.loads(text))
    except (TypeError, ValueError) as e:
        raise RefusedError(f"its progress.json is damaged ({e})") from e


def _apart(saved: Any, own: Any) -> str:
    """What differs between a saved run and this one; of two models, only the sizes that do."""
    if isinstance(saved, dict) and isinstance(own, dict):
        names = [name for name in saved | own if saved.get(name) != own.get(name)]
        saved, own = (", ".join(f"{name} {values.get(name)}" for name in names) for values in (saved, own))
    return f"{saved}; this one has {own}"


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: Mesh) -> dict[str, Piece]:
    """Everything to save that is a tensor, by the reference's names; state of a parameter's shape is cut as the parameter is."""
    state: dict[str, Piece] = {}
    for name, param in model.named_parameters():
        offset, whole = place(param, mesh)
        state[f"model.{name}"] = Piece(param, offset, whole)
        for key, value in optimizer.state.get(param, {}).items():
            piece = Piece(value, offset, whole) if value.shape == param.shape else Piece.all_of(value)
            state[f"optimizer.{key}.{name}"] = piece
    kept = model.state_dict().keys()  # a buffer that is not persistent is not in here
    return state | {f"model.{name}": Piece.all_of(buffer) for name, buffer in model.named_buffers() if name in kept}


def _make_room(optimizer: torch.optim.Optimizer, model: nn.Module, saved: Metadata) -> None:
    """Allocate the optimizer's state, which it would only do at its first step, in the form in which it was saved."""
    params = dict(model.named_parameters())
    for full_name, form in saved.state_dict_metadata.items():
        kind, _, rest = full_name.partition(".")
        key, _, name = rest.partition(".")
        if kind == "optimizer" and name in params and isinstance(form, TensorStorageMetadata):
            like, dtype = params[name], form.properties.dtype
            optimizer.state[like][key] = torch.zeros_like(like, dtype=dtype) if form.size else torch.zeros((), dtype=dtype)


@contextmanager
def _with_remedy(path: Path) -> Iterator[None]:
    try:
        yield
    except RefusedError as e:
        raise RefusedError(f"{e}; if it is damaged, remove {path.name} to go on from the checkpoint before it") from e


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Failures of any rank in here, which all ranks see, become one sentence; an interrupt stays one."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as e:
        errors = [error for error, _ in e.failures.values()]
        for error in errors:
            if not isinstance(error, Exception):
                raise error from None
        raise RefusedError(f"{what}: {_reason(errors[0])}") from e


def _reason(error: BaseException) -> str:
    root = error
    while not isinstance(root, OSError) and (before := root.__cause__ or root.__context__) is not None:
        root = before
    return (root.strerror or str(root)) if isinstance(root, OSError) else (str(error).splitlines() or [type(error).__name__])[0]

"""The gradient ledger: does a split model learn exactly what the whole one learns?

``compare`` runs one layout and the one-process reference on the same batches, side by side on every rank, and books loss,
gradients, gradient norm and parameters over several steps of plain SGD. Plain, because Adam divides every scale error away; in
float64, because then only a mistake can make a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from minipar import comm, data
from minipar.data import Batch
from minipar.mesh import Mesh
from minipar.model import GPT, GPTConfig
from minipar.parameters import full_tensor, grad_norm

NOISE = 1e-4  # of the model's largest value: a smaller tensor is compared on this scale (a key's bias is zero but for rounding)


class Layout(Protocol):
    """A model split over the ranks. Its local parameters keep the reference's names."""

    @property
    def model(self) -> nn.Module: ...

    def step(self, batch: Batch) -> Tensor:
        """Forward and backward on this rank's part of the global ``batch``: synced gradients, and the global mean loss."""
        ...


Build = Callable[[GPTConfig, Mesh, GPT], Layout]


@dataclass(frozen=True)
class Entry:
    """One value of the layout beside the reference's."""

    step: int
    what: str  # "loss", "gradient", "gradient norm" or "parameter"
    name: str  # of the parameter
    error: float  # the largest difference over the largest reference value


@dataclass
class Ledger:
    """The outcome: every entry, the first that differs, and what probably went wrong."""

    entries: list[Entry]
    tolerance: float
    cause: str = ""
    losses: list[float] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.first is None

    @property
    def first(self) -> Entry | None:
        """The first entry beyond the tolerance, in order of computation."""
        return next((e for e in self.entries if not e.error <= self.tolerance), None)

    @property
    def worst(self) -> Entry:
        return max(self.entries, key=lambda e: e.error)

    def __str__(self) -> str:
        first = self.first
        if first is None:
            values = f"{len(self.entries)} values (counted)"
            return f"equal to the reference: {values}, largest relative difference {self.worst.error:.1e} (measured)"
        where = f"{first.what} of {first.name}" if first.name else first.what
        apart = f"{first.error:.1e} (relative, measured)"
        return f"step {first.step}: the {where} differs from the reference by {apart}. {self.cause}".rstrip()


def compare(
    config: GPTConfig,
    mesh: Mesh,
    build: Build | None = None,
    steps: int = 3,
    rows: int = 8,
    lr: float = 0.1,
    ragged: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-10,
    batches: list[Batch] | None = None,
) -> Ledger:
    """Run a layout and the reference together; call it on every rank. All ranks get the same ``Ledger``.

    ``build(config, mesh, model)`` splits ``model``, a full copy of the reference; left out, it is ``minipar.blend.build``.
    ``rows`` is the global batch; ``ragged`` masks unequal numbers of targets; ``batches`` replaces the built-in text.
    """
    if build is None:
        from minipar.blend import build as blend

        build = blend
    reference = GPT(config, seed).to(dtype)
    layout = build(config, mesh, deepcopy(reference))
    batches = batches or [data.batch(step, rows, config.seq, ragged=ragged) for step in range(steps)]
    book = _Book(reference, layout, mesh, tolerance)
    for step, batch in enumerate(batches):
        book.step(step, batch, lr)
    return book.close()


class _Book:
    def __init__(self, reference: GPT, layout: Layout, mesh: Mesh, tolerance: float) -> None:
        self.reference, self.layout, self.mesh, self.tolerance = reference, layout, mesh, tolerance
        self.expected = dict(reference.named_parameters())
        self.entries: list[Entry] = []
        self.losses: list[float] = []
        self.cause = ""

    def step(self, step: int, batch: Batch, lr: float) -> None:
        _clear(self.reference)
        _clear(self.layout.model)
        loss = self.reference.loss(batch)
        loss.backward()
        got = self.layout.step(batch)
        self.losses.append(loss.item())
        self._enter(step, "loss", "", got, loss)
        self._gradients(step)
        params = list(self.layout.model.parameters())
        norm = torch.stack([_grad(p).double().norm() for p in self.expected.values()]).norm()
        self._enter(step, "gradient norm", "", grad_norm(params, self.mesh), norm)
        for model in (self.reference, self.layout.model):
            _sgd(model, lr)
        floor = _noise(self.expected.values())
        for name, param in self._local():
            self._enter(step, "parameter", name, full_tensor(param, param, self.mesh), self.expected[name], floor)

    def _gradients(self, step: int) -> None:
        """Book every gradient; of the first wrong one of this rank's stage, look for the cause while the gradients are there."""
        floor = _noise(_grad(p) for p in self.expected.values())
        booked = [(name, full_tensor(_grad(param), param, self.mesh)) for name, param in self._local()]
        errors = [self._enter(step, "gradient", name, got, _grad(self.expected[name]), floor) for name, got in booked]
        if not self.cause and booked:
            worst = comm.all_reduce(torch.tensor(errors), self.mesh["dp", "cp", "tp"], "max")
            first = next((i for i, error in enumerate(worst.tolist()) if not error <= self.tolerance), None)
            if first is not None:
                name, got = booked[first]
                self.cause = likely_cause(got, _grad(self.expected[name]), self.mesh)

    def _local(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, param in self.layout.model.named_parameters():
            if name not in self.expected:
                raise KeyError(f"the layout holds a parameter {name!r} that the reference lacks; keep the reference's names")
            yield name, param

    def _enter(self, step: int, what: str, name: str, got: Tensor, expected: Tensor, floor: float = 0.0) -> float:
        error = relative_error(got, expected, name, floor)
        self.entries.append(Entry(step, what, name, error))
        return error

    def close(self) -> Ledger:
        """The worst of all ranks for each entry, and a complaint where no rank held a parameter."""
        worst: dict[tuple[int, str, str], float] = {}
        everyone = comm.gather_objects((self.entries, self.cause), self.mesh.world)
        for e in (e for entries, _ in everyone for e in entries):
            key = (e.step, e.what, e.name)
            worst[key] = max(worst.get(key, 0.0), e.error)
        missing = sorted(self.expected.keys() - {name for _, what, name in worst if what == "parameter"})
        if missing:
            raise KeyError(f"no rank holds {', '.join(missing)}: the split lost parameters")
        order = {what: i for i, what in enumerate(("loss", "gradient", "gradient norm", "parameter"))}
        place = {name: i for i, name in enumerate(["", *self.expected])}
        keys = sorted(worst, key=lambda k: (k[0], order[k[1]], place[k[2]]))
        cause = next((cause for _, cause in everyone if cause), "")
        return Ledger([Entry(*key, worst[key]) for key in keys], self.tolerance, cause, self.losses)


def relative_error(got: Tensor, expected: Tensor, name: str = "", floor: float = 0.0) -> float:
    """The largest difference over the largest expected value (at least ``floor``); infinite where a value is not a number."""
    if got.shape != expected.shape:
        raise ValueError(f"{name or 'the value'} has shape {list(got.shape)} where the reference has {list(expected.shape)}")
    difference = (got.detach().double() - expected.detach().double()).abs().max().item() if got.numel() else 0.0
    scale = max(expected.detach().double().abs().max().item(), floor) if expected.numel() else floor
    error = difference / scale if scale else difference
    return error if error == error else float("inf")


def likely_cause(got: Tensor, expected: Tensor, mesh: Mesh) -> str:
    """A guess at what is wrong with a gradient. Every rank of the stage must call it, since it tries sums over the axes."""
    sizes = {name: size for name, size in mesh.sizes.items() if size > 1}
    sums = {name: comm.all_reduce(got, mesh[name]) for name in ("dp", "cp", "tp", "edp", "ep") if name in sizes}
    ratio = float((got.double() * expected.double()).sum() / expected.double().pow(2).sum())
    if got.any() and relative_error(got.double(), ratio * expected.double()) < 1e-6:
        return _cause_of_ratio(ratio, sizes)
    for name, total in sums.items():
        if relative_error(total, expected) < 1e-6:
            return f"Its sum over axis {name} is right: an all-reduce over {name} is missing."
    if not got.any():
        return "It is zero: this parameter takes no part in the split model's backward."
    return "It is no multiple of the reference: part of it is missing, doubled or from other tokens."


def _cause_of_ratio(ratio: float, sizes: dict[str, int]) -> str:
    for name, size in sizes.items():
        if abs(ratio - size) < 1e-6 * size:
            return f"It is {size} times too large, the size of axis {name}: summed where it should be averaged, or summed twice."
        if abs(ratio - 1 / size) < 1e-6:
            return f"It is {size} times too small, the size of axis {name}: averaged where it should be summed, or averaged twice."
    if ratio > 1:
        return f"It is {ratio:.4g} times too large: a missing 1/{ratio:.4g}, such as the number of microbatches or of tokens."
    return f"It is {1 / ratio:.4g} times too small: divided once too often, such as by the number of microbatches or of tokens."


def _noise(values: Iterable[Tensor]) -> float:
    return NOISE * max(x.detach().abs().max().item() for x in values if x.numel())


def _grad(param: Tensor) -> Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


def _clear(model: nn.Module) -> None:
    for param in model.parameters():
        param.grad = None


def _sgd(model: nn.Module, lr: float) -> None:
    with torch.no_grad():
        for param in model.parameters():
            param.sub_(_grad(param), alpha=lr)

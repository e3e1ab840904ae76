"""Named axes over the ranks: which ranks split the batch, the layers, the sequence, the matrices, the experts.

``Mesh(dp=2, tp=2)`` lays four ranks out as a 2 x 2 grid. The innermost axis, ``tp``, holds neighbouring ranks, because it talks
the most. Every axis works at size 1, and a mesh of one rank needs no process group at all.

The expert axis is a second view of the same ranks: within one pipeline stage the ``dp * cp * tp`` ranks are regrouped into
``edp * ep``, so that attention may be split one way and the experts another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch
import torch.distributed as dist

DENSE = ("pp", "dp", "cp", "tp")  # outermost first
EXPERT = ("edp", "ep")


@dataclass(frozen=True)
class Axis:
    """One line of ranks through the mesh, as seen from this rank."""

    name: str
    size: int
    rank: int  # this rank's place on the axis
    ranks: tuple[int, ...]  # the global ranks on the axis, in order
    group: dist.ProcessGroup | None = field(default=None, compare=False)  # None where the axis has one rank


def world() -> Axis:
    """All ranks as one axis; a single process without a process group is a world of one."""
    if not dist.is_initialized():
        return Axis("world", 1, 0, (0,))
    size = dist.get_world_size()
    return Axis("world", size, dist.get_rank(), tuple(range(size)), dist.group.WORLD if size > 1 else None)


class Mesh:
    """The ranks laid out by ``dp`` (batch), ``pp`` (layers), ``cp`` (sequence), ``tp`` (matrices) and ``ep`` (experts).

    The first four sizes multiply to the number of ranks; ``ep`` divides ``dp * cp * tp``. Every rank must build the mesh, since
    making groups is itself a collective. ``mesh["dp"]`` is one axis, ``mesh["dp", "cp"]`` the ranks of both together.
    """

    def __init__(self, dp: int = 1, pp: int = 1, cp: int = 1, tp: int = 1, ep: int = 1) -> None:
        self.sizes = {"pp": pp, "dp": dp, "cp": cp, "tp": tp}
        self.world = world()
        self._refuse_bad_sizes(ep)
        per_stage = dp * cp * tp
        self.sizes |= {"edp": per_stage // ep, "ep": ep}
        self._axes: dict[tuple[str, ...], Axis] = {}
        if self.world.size == 1:
            return
        dense = torch.arange(self.world.size).view(pp, dp, cp, tp)
        experts = dense.reshape(pp, per_stage // ep, ep)
        for name in DENSE:
            self._add((name,), dense, DENSE)
        for name in EXPERT:
            self._add((name,), experts, ("pp", *EXPERT))
        for names in _joints(self.sizes):
            self._add(names, dense, DENSE)

    def _refuse_bad_sizes(self, ep: int) -> None:
        for name, size in {**self.sizes, "ep": ep}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"the size of axis {name} must be a whole number of ranks, at least 1; got {size!r}")
        product, have = prod(self.sizes.values()), self.world.size
        if product != have:
            factors = " x ".join(f"{name} {size}" for name, size in self.sizes.items())
            raise ValueError(f"{factors} = {product} ranks, but {have} are running: the sizes must multiply to the number of ranks")
        per_stage = product // self.sizes["pp"]
        if per_stage % ep:
            raise ValueError(f"ep {ep} does not divide the {per_stage} ranks of one stage (dp x cp x tp)")

    def _add(self, names: tuple[str, ...], grid: torch.Tensor, dims: tuple[str, ...]) -> None:
        """The lines of ranks along ``names`` through ``grid``, whose dimensions are ``dims``; one axis, if it has several ranks."""
        size = prod(self.sizes[name] for name in names)
        if size > 1:
            order = [dims.index(name) for name in dims if name not in names] + [dims.index(name) for name in names]
            lines = tuple(tuple(line) for line in grid.permute(order).reshape(-1, size).tolist())
            self._axes[names] = _axis("+".join(names), lines, self.world)

    def __getitem__(self, names: str | tuple[str, ...]) -> Axis:
        wanted = (names,) if isinstance(names, str) else tuple(names)
        unknown = [name for name in wanted if name not in self.sizes]
        if unknown:
            raise KeyError(f"no axis {unknown[0]!r}; a mesh has {', '.join(self.sizes)}")
        real = tuple(name for name in (*DENSE, *EXPERT) if name in wanted and self.sizes[name] > 1)
        if not real:
            return Axis("+".join(wanted), 1, 0, (self.world.rank,))
        if real not in self._axes:  # an axis of one rank would leave the others out in silence
            joined = ", ".join("+".join(each) for each in self._axes if len(each) > 1) or "none"
            raise KeyError(f"no joint axis of {' and '.join(real)}; the joint axes of this mesh: {joined}")
        return self._axes[real]

    def __repr__(self) -> str:
        return "Mesh(" + ", ".join(f"{name}={size}" for name, size in self.sizes.items() if size > 1) + ")"


Lines = tuple[tuple[int, ...], ...]
_made: tuple[dist.ProcessGroup | None, dict[tuple[str, Lines], dist.ProcessGroup]] = (None, {})


def _axis(name: str, lines: Lines, everyone: Axis) -> Axis:
    """This rank's line, with a process group. Making groups is a collective: every rank makes those of all lines, in order.

    Every group costs threads and sockets, on gloo even while it is idle; so axes of equal names and lines share theirs, and one
    rank alone has none. (Axes of different names do not, as their calls may come in another order on another rank.)
    """
    global _made
    if _made[0] is not everyone.group:
        _made = (everyone.group, {})  # the groups of a process group that is gone are gone with it
    own = next(line for line in lines if everyone.rank in line)
    if (name, lines) not in _made[1]:
        groups = {line: dist.new_group(list(line), group_desc=name) for line in lines}
        _made[1][name, lines] = groups[own]
    return Axis(name, len(own), own.index(everyone.rank), own, _made[1][name, lines])


def _joints(sizes: dict[str, int]) -> list[tuple[str, ...]]:
    """The joint axes that losses, gradient syncs and norms need, each only of axes larger than one."""
    wanted = [("dp", "cp"), ("dp", "cp", "tp"), ("dp", "tp"), ("cp", "tp"), ("pp", "tp"), ("pp", "dp", "cp"), DENSE]
    real = {tuple(name for name in names if sizes[name] > 1) for names in wanted}
    return sorted(names for names in real if len(names) > 1)

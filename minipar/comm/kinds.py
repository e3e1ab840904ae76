"""A checking mode that follows, for each mesh axis, what kind of value a tensor holds, and refuses the mistakes that stay silent.

    with comm.strict() as mode:
        loss = model.loss(batch)      # KindError where, say, a partial value meets a GELU

    kind        the ranks of the axis hold                          who gives it
    replicated  the same value, and the same gradient               reduce, gather
    entered     the same value, but each a part of the gradient     copy, gather_for_sharded, broadcast
    sharded     each a piece                                        split, reduce_scatter, all_to_all, a column-parallel product
    partial     each a part of a sum                                a row-parallel product, a lookup in part of a vocabulary

Kinds come from the twins, from the notes on parameters (``minipar.parameters``) and from ``mode.note``, and go along with every
torch function. A tensor of unknown kind is never refused, and what is inside another autograd Function is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from minipar.mesh import Axis

Twin = TypeVar("Twin", bound=Callable[..., Tensor])

REPLICATED, ENTERED, SHARDED, PARTIAL = KINDS = ("replicated", "entered", "sharded", "partial")

ADVICE = {
    REPLICATED: "every rank holds the same value already, with the same gradient",
    ENTERED: "every rank holds the same value already, ready for sharded work",
    SHARDED: "each rank holds a piece: gather the pieces first",
    PARTIAL: "each rank holds a part of a sum: twins.reduce or twins.reduce_scatter it first",
}
# fmt: off
ADDITIVE = {"add", "sub", "__add__", "__radd__", "__sub__", "__rsub__", "__iadd__", "__isub__", "add_", "sub_"}
SCALING = {
    "mul", "div", "__mul__", "__rmul__", "__truediv__", "__imul__", "__itruediv__", "mul_", "div_", "matmul", "__matmul__",
    "linear",
}
MOVING = {
    "view", "view_as", "reshape", "transpose", "permute", "flatten", "unflatten", "contiguous", "clone", "detach", "to",
    "float", "double", "bfloat16", "chunk", "split", "narrow", "select", "unbind", "expand", "squeeze", "unsqueeze",
    "movedim", "stack", "cat", "neg", "__neg__", "sum", "mean", "__getitem__", "__get__",
}
# fmt: on


class KindError(ValueError):
    """A value of one kind was used where another kind is needed."""


class Strict(TorchFunctionMode):
    """Follows kinds through all torch functions called inside."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds = WeakTensorKeyDictionary()  # tensor -> {axis name: kind}
        self.paused = False  # inside a twin

    def note(self, x: Tensor, axis: Axis, kind: str) -> Tensor:
        """Say that ``x`` is of this kind on ``axis``."""
        if kind not in KINDS:
            raise ValueError(f"a kind is one of {', '.join(KINDS)}, not {kind!r}")
        self._kinds[x] = {**self.kinds(x), axis.name: kind}
        return x

    def kinds(self, x: Tensor) -> dict[str, str]:
        """The known kinds of ``x``, by name of the axis."""
        return {**dict.fromkeys(_shards(x), SHARDED), **self._kinds.get(x, {})}

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = _tensors(out)
        if made and not self.paused:
            given = _tensors((args, kwargs or {}))
            axes = {axis for x in given for axis in self.kinds(x)}
            results = {axis: self._result(getattr(func, "__name__", str(func)), given, axis) for axis in axes}
            for x in made:
                self._kinds[x] = {axis: kind for axis, kind in results.items() if kind}
        return out

    def _result(self, name: str, given: list[Tensor], axis: str) -> str:
        """The kind of what ``name`` makes of these tensors; refuses what would be wrong."""
        weight = next((x for x in given[1:2] if axis in _shards(x)), None)
        if weight is not None and name in ("linear", "embedding"):
            return self._of_split_weight(name, given, weight, axis)
        kinds = {kind for x in given if (kind := self.kinds(x).get(axis))}
        if PARTIAL in kinds:
            return self._of_partial(name, given, axis)
        if kinds & {ENTERED, SHARDED} and any(self.kinds(x).get(axis) == REPLICATED and x.requires_grad for x in given):
            raise KindError(
                f"{name}: a value that is replicated over {axis} feeds work that differs between its ranks, so each will know only "
                "a part of its gradient: pass it through twins.copy first"
            )
        return next((kind for kind in (SHARDED, ENTERED, REPLICATED) if kind in kinds), "")

    def _of_split_weight(self, name: str, given: list[Tensor], weight: Tensor, axis: str) -> str:
        dim, _ = _shards(weight)[axis]
        kind = self.kinds(given[0]).get(axis)
        if kind == PARTIAL:
            raise KindError(f"{name}: its input is partial over {axis}: {ADVICE[PARTIAL]}")
        if name == "embedding":
            return PARTIAL if dim == 0 else SHARDED
        if dim == 0:
            if kind == REPLICATED and given[0].requires_grad:
                raise KindError(
                    f"{name}: a column-parallel product needs its replicated input to have passed twins.copy over {axis}"
                )
            return SHARDED
        if len(given) > 2:
            raise KindError(
                f"{name}: a row-parallel product is partial over {axis}: with its bias added here, it would count once a rank"
            )
        return PARTIAL

    def _of_partial(self, name: str, given: list[Tensor], axis: str) -> str:
        partial = [x for x in given if self.kinds(x).get(axis) == PARTIAL]
        if name in MOVING and len(partial) == len(given):
            return PARTIAL
        if name in ADDITIVE:
            if len(partial) == len(given) > 1:
                return PARTIAL
            raise KindError(f"{name}: what is added to a partial value over {axis} would count once a rank: {ADVICE[PARTIAL]}")
        divided = name in ("div", "__truediv__", "__itruediv__")
        if (
            name in SCALING
            and len(partial) == 1
            and len(given) <= 2
            and not (divided and given[-1] is partial[0] and len(given) == 2)
        ):
            return PARTIAL
        raise KindError(
            f"{name} of a partial value over {axis} is not the sum of what the ranks make of their parts: {ADVICE[PARTIAL]}"
        )


def _shards(x: Tensor) -> dict[str, tuple[int, Sequence[int] | None]]:
    """The axes over which a parameter is split: the notes that ``minipar.parameters`` puts on it."""
    notes = getattr(x, "_minipar_spec", None)
    return notes.shards if notes else {}


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_flatten(values)[0] if isinstance(x, Tensor)]


_active: list[Strict] = []


@contextmanager
def strict() -> Iterator[Strict]:
    """Check kinds in the enclosed code (see this file's head)."""
    mode = Strict()
    _active.append(mode)
    try:
        with mode:
            yield mode
    finally:
        _active.pop()


def active() -> bool:
    """Whether code runs under ``strict`` now."""
    return bool(_active)


def twin(takes: tuple[str, ...], gives: str) -> Callable[[Twin], Twin]:
    """Under ``strict``, the decorated communication takes tensors of these kinds only, and gives one of that kind."""

    def decorate(call: Twin) -> Twin:
        @wraps(call)
        def checked(x: Tensor, axis: Axis, *args: Any, **kwargs: Any) -> Tensor:
            if not _active or axis.size == 1:
                return call(x, axis, *args, **kwargs)
            mode = _active[-1]
            kind = mode.kinds(x).get(axis.name)
            if kind is not None and kind not in takes:
                wanted = " or ".join(takes)
                raise KindError(
                    f"{call.__name__} over {axis.name} takes a value that is {wanted}; this one is {kind}: {ADVICE[kind]}"
                )
            mode.paused = True
            try:
                out = call(x, axis, *args, **kwargs)
            finally:
                mode.paused = False
            mode._kinds[out] = {**mode.kinds(x), axis.name: gives}
            return out

        return cast(Twin, checked)

    return decorate

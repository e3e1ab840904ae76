"""minipar: every way of splitting a network over many devices, written to be read.

Plain SPMD PyTorch: the same program runs on every rank, under ``torchrun`` or under ``course.Ranks``.
The names below are loaded when first used, so that ``minipar.trace`` and the schedules work without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipar.mesh import Axis, Mesh
    from minipar.model import GPT, GPTConfig
    from minipar.trace import Span, Timeline

__all__ = ["GPT", "Axis", "GPTConfig", "Mesh", "Span", "Timeline"]

_HOMES = {
    "Axis": "minipar.mesh",
    "Mesh": "minipar.mesh",
    "GPT": "minipar.model",
    "GPTConfig": "minipar.model",
    "Span": "minipar.trace",
    "Timeline": "minipar.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'minipar' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)

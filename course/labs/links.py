"""The hardware a lab can pretend to run on, and how much it must be slowed down for this machine to keep up."""

from __future__ import annotations

from typing import Any

from course.labs.controls import Choice
from course.labs.slow_motion import slowed
from minipar.hardware import PRESETS, Cluster

THIS = "this machine"
LINKS = (THIS, *(name for name in PRESETS if name != "cpu"))


def link_menu(value: str, measured: bool = True) -> Choice:
    """``measured``: this machine's own speed is one of the choices."""
    return Choice("link", LINKS if measured else LINKS[1:], value, "the devices and links that the ranks are paced by")


def modelled(link: str) -> Cluster:
    """What theory takes ``link`` for."""
    return PRESETS["cpu" if link == THIS else link]


def pacing_of(link: str, predicted: float, shown: float) -> dict[str, Any]:
    """``go``'s options for a run predicted to last ``predicted`` seconds, to be seen for ``shown`` seconds."""
    if link == THIS:
        return {"hardware": None, "factor": 1.0}
    factor = max(1.0, shown / predicted)
    return {"hardware": slowed(modelled(link), factor), "factor": factor}


def said(link: str, factor: float) -> str:
    """How the numbers came about."""
    if link == THIS:
        return "Measured on this machine's CPU, over loopback."
    return f"Paced as {link}, {pace(factor)}."


def pace(factor: float) -> str:
    """How fast the ranks went, next to the time that is shown."""
    if factor < 1.05:
        return "as fast as shown"
    return f"{factor:,.{0 if factor >= 9.95 else 1}f} times slower than shown"

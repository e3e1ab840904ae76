"""What is refused, and why: sentences about numbers that cannot be meant, None where there is nothing to say."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


class RefusedError(ValueError):
    """A run that cannot be done as it was asked for; the text says why, in a sentence."""


def not_whole(name: str, value: Any, least: int = 1) -> str | None:
    """Why ``value`` is no whole number of at least ``least``; True and False are none either."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return f"{name} must be a whole number, not {value!r}"
    return None if int(value) >= least else f"{name} must be at least {least}, and is {value}"


def not_number(name: str, value: Any, least: float = -math.inf) -> str | None:
    """Why ``value`` is no number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return f"{name} must be a number, not {value!r}"
    if math.isnan(value):
        return f"{name} must be a number, not nan"
    return None if float(value) >= least else f"{name} must be at least {least:g}, and is {value}"


def not_above_zero(name: str, value: Any) -> str | None:
    """Why ``value`` is no number above 0."""
    return not_number(name, value) or (None if value > 0 else f"{name} must be above 0, and is {value}")


def not_one_of(name: str, value: Any, names: Any) -> str | None:
    """Why ``value`` is none of ``names``."""
    return None if isinstance(value, str) and value in names else f"{name} is one of {', '.join(names)}, not {value!r}"


def refuse(*reasons: str | None) -> None:
    """Raise ValueError with the first reason that there is."""
    for reason in reasons:
        if reason is not None:
            raise ValueError(reason)

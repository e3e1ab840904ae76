"""How a number is written for a learner: with its unit, and with the word that says how it was come by.

*counted* is exact (bytes, messages, tokens), *measured* is a clock on real ranks, *paced* is the clock of ranks that take as long
as the modelled hardware would, *predicted* is arithmetic. Prefixes are decimal: 1 MB is 10**6 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minipar.trace import SOURCES

_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXED = ("B", "B/s", "flop", "flop/s", "tokens/s")
_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def number(value: float | None, unit: str, source: str = "") -> str:
    """``value`` as text: ``number(0.0123, "s", "measured")`` is ``"12.3 ms (measured)"``.

    ``unit`` is ``"s"`` (seconds), ``"share"`` (a fraction, shown in per cent), ``"B"``, ``"B/s"``, ``"flop/s"``, ``"tokens/s"``
    (large prefixes), ``""`` or any noun (an exact count when whole). ``source`` is a word of ``minipar.trace.SOURCES``.
    """
    if source and source not in SOURCES:
        raise ValueError(f"a number is one of {', '.join(SOURCES)}, not {source!r}")
    return _plain(value, unit) + (f" ({source})" if source else "")


def _plain(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "unknown"
    if unit == "s":
        return _seconds(value)
    if unit == "share":
        return f"{value * 100:.1f} %"
    if unit in _PREFIXED:
        return _prefixed(value, unit)
    whole = f"{value:,.0f}" if float(value).is_integer() else _three(value)
    return f"{whole} {unit}".rstrip()


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    scale, unit = _scaled(value, _TIME)
    return f"{_three(value / scale)} {unit}"


def _prefixed(value: float, unit: str) -> str:
    scale, prefix = _scaled(value, _LARGE)
    return f"{_three(value / scale)} {prefix}{unit}"


def _scaled(value: float, scales: Sequence[tuple[float, str]]) -> tuple[float, str]:
    return next((scale for scale in scales if abs(value) >= scale[0] * 0.9995), scales[-1])


def tick_texts(values: Sequence[float], unit: str) -> list[str]:
    """The ticks of one axis as text: all in one unit, with as many decimals as the one that needs most.

    ``tick_texts([3, 3.5, 4], "")`` is ``["3.0", "3.5", "4.0"]``; alone, a 3 is ``"3"``.
    """
    if not len(values):
        return []
    scale, name = _tick_scale(max(abs(v) for v in values), unit)
    shown = [v / scale for v in values]
    step = abs(shown[1] - shown[0]) if len(shown) > 1 else abs(shown[0]) or 1.0
    exact = (d for d in range(6) if all(abs(v - round(v, d)) <= 1e-4 * step for v in shown))
    decimals = next(exact, 6)
    return [f"{v if abs(v) > 1e-4 * step else 0.0:,.{decimals}f} {name}".rstrip() for v in shown]


def _tick_scale(largest: float, unit: str) -> tuple[float, str]:
    if unit == "s":
        return _scaled(largest or 1.0, _TIME)
    if unit == "share":
        return 0.01, "%"
    if unit in _PREFIXED:
        scale, prefix = _scaled(largest, _LARGE)
        return scale, prefix + unit
    return 1.0, unit


def _three(value: float) -> str:
    """Three significant digits, without an exponent, whole numbers without a point."""
    if float(value).is_integer() and abs(value) < 1000:
        return f"{value:.0f}"
    rounded = float(f"{value:.3g}") if abs(value) < 1000 else round(value)
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)) + 1e-9)) if rounded else 0
    return f"{rounded:,.{min(digits, 6)}f}"

"""How a number is written for a learner: with its unit, and with the word that says how it was come by.

*counted* is exact (bytes, messages, tokens), *measured* is a clock on real ranks, *paced* is a clock on ranks that wait as
the modelled hardware would, *predicted* is arithmetic. Prefixes are decimal: 1 MB is 10**6 bytes.
"""

from __future__ import annotations

import math

from minipar.trace import SOURCES

_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
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
    if unit in ("B", "B/s", "flop", "flop/s", "tokens/s"):
        return _prefixed(value, unit)
    whole = f"{value:,.0f}" if float(value).is_integer() else _three(value)
    return f"{whole} {unit}".rstrip()


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    scale, unit = next(((s, u) for s, u in _TIME if abs(value) >= s * 0.9995), _TIME[-1])
    return f"{_three(value / scale)} {unit}"


def _prefixed(value: float, unit: str) -> str:
    scale, prefix = next(((s, p) for s, p in _LARGE if abs(value) >= s * 0.9995), _LARGE[-1])
    return f"{_three(value / scale)} {prefix}{unit}"


def _three(value: float) -> str:
    """Three significant digits, without an exponent, whole numbers without a point."""
    if float(value).is_integer() and abs(value) < 1000:
        return f"{value:.0f}"
    rounded = float(f"{value:.3g}") if abs(value) < 1000 else round(value)
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)) + 1e-9)) if rounded else 0
    return f"{rounded:,.{min(digits, 6)}f}"

"""The numbers of a lab: what theory says beside what the ranks showed, each with the word for how it was come by."""

from __future__ import annotations

from dataclasses import dataclass, field

from course.views.labels import number
from course.views.table import Table
from minipar.trace import SOURCES

Value = float | str


@dataclass
class Figures:
    """One row a quantity, in the order in which they were first named."""

    predicted: dict[str, tuple[Value, str]] = field(default_factory=dict)  # name -> value, unit
    found: dict[str, tuple[Value, str, str]] = field(default_factory=dict)  # name -> value, unit, source

    def predict(self, name: str, value: Value, unit: str = "") -> None:
        self.predicted[name] = (value, unit)

    def find(self, name: str, value: Value, unit: str = "", source: str = "measured") -> None:
        if source not in SOURCES:
            raise ValueError(f"what ranks showed is one of {', '.join(SOURCES)}, not {source!r}")
        self.found[name] = (value, unit, source)

    def table(self, caption: str = "") -> Table:
        rows = []
        for name in dict.fromkeys([*self.predicted, *self.found]):
            expected = _text(*self.predicted[name]) if name in self.predicted else "-"
            value, unit, source = self.found.get(name, ("-", "", ""))
            rows.append((name, expected, _text(value, unit), source or "-"))
        return Table.of(("", "predicted", "these ranks", "how"), rows, caption)


def _text(value: Value, unit: str) -> str:
    return value if isinstance(value, str) else number(value, unit)

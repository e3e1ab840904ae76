"""Hints, folded one into the other: the second can only be opened once the first is."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Hints:
    """The hints of one exercise, vaguest first."""

    exercise: str
    texts: tuple[str, ...]

    def __repr__(self) -> str:
        count = len(self.texts)
        return f"{count} hints, folded. Read them one at a time: hint({self.exercise!r}, 1) to hint({self.exercise!r}, {count})."

    def _repr_html_(self) -> str:
        inner = ""
        for number, text in reversed(list(enumerate(self.texts, 1))):
            label = "Hint 1" if number == 1 else f"Not enough? Hint {number}"
            body = f'<p style="margin:.3em 0">{_inline(text)}</p>{inner}'
            inner = f'<details style="margin:.2em 0 .2em 1em"><summary style="cursor:pointer">{label}</summary>{body}</details>'
        return inner


@dataclass(frozen=True)
class Hint:
    """One hint, unfolded."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<p>{_inline(self.text)}</p>"


def _inline(text: str) -> str:
    """HTML of a text in which `backticks` mark code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))

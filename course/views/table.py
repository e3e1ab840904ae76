"""A table that reads as text (saved notebooks, terminals, screen readers) and as HTML (a browser)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """Rows of text under ``heads``; the first column is left-aligned, the others right-aligned."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    @classmethod
    def of(cls, heads: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> Table:
        return cls(tuple(heads), tuple(tuple(str(cell) for cell in row) for row in rows), caption)

    def __str__(self) -> str:
        lines = [self.heads, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.heads))]
        text = [_line(line, widths) for line in lines]
        text.insert(1, "  ".join("-" * w for w in widths))
        return "\n".join(([self.caption] if self.caption else []) + text)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{escape(h)}</th>' for h in self.heads)
        body = "".join(f"<tr>{''.join(_cell(i, c) for i, c in enumerate(row))}</tr>" for row in self.rows)
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(_pad(cell, widths[i], i) for i, cell in enumerate(cells)).rstrip()


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def _cell(column: int, text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>' if column == 0 else f"<td>{escape(text)}</td>"

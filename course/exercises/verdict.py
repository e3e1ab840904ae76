"""What ``check`` answers: one mark, one sentence, and what was counted; as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

_BOX = (
    "border-left:4px solid {colour};padding:.5em .9em;margin:.3em 0;max-width:60em;"
    "background:var(--jp-layout-color2,#f5f5f5);color:var(--jp-content-font-color1,#1b1b1b)"
)
_PRE = "margin:.5em 0 0;background:none;color:inherit;word-break:normal;overflow-wrap:anywhere"  # JupyterLab breaks words anywhere
RIGHT, NOT_YET = "#009E73", "#E69F00"  # told apart by the common colour-vision deficiencies, and by their words


@dataclass(frozen=True)
class Verdict:
    """The outcome of ``check``; true when the answer is right."""

    exercise: str
    ok: bool
    message: str
    tried: str = ""  # "4 ranks, seed 0"

    def __bool__(self) -> bool:
        return self.ok

    @property
    def _mark(self) -> str:
        return "Right" if self.ok else "Not yet"

    def __repr__(self) -> str:
        tried = f"  [{self.tried}]" if self.tried else ""
        return f"{self._mark}: {self.message}{tried}"

    def _repr_html_(self) -> str:
        colour = RIGHT if self.ok else NOT_YET
        sign = "✓" if self.ok else "✗"
        first, *rest = self.message.split("\n")
        more = f'<pre style="{_PRE}">{escape(chr(10).join(rest))}</pre>' if rest else ""
        tried = f'<div style="opacity:.7;font-size:90%;margin-top:.3em">{escape(self.tried)}</div>' if self.tried else ""
        head = f'<b style="color:{colour}">{sign}</b> <b>{self._mark}:</b> {escape(first)}'
        return f'<div style="{_BOX.format(colour=colour)}">{head}{more}{tried}</div>'

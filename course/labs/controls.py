"""What a learner can set: a number on a slider, one of a few words, or a line of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slider:
    """A number from ``low`` to ``high``. Whole numbers make a slider of whole numbers."""

    label: str
    low: float
    high: float
    value: float
    step: float = 1
    help: str = ""

    def widget(self) -> Any:
        import ipywidgets as w

        whole = all(float(x).is_integer() for x in (self.low, self.high, self.value, self.step))
        kind, cast = (w.IntSlider, int) if whole else (w.FloatSlider, float)
        numbers = {"min": self.low, "max": self.high, "step": self.step, "value": self.value}
        return kind(**{k: cast(v) for k, v in numbers.items()}, **_look(self.label, self.help))


@dataclass(frozen=True)
class Steps:
    """One of a few numbers or words in order, on a slider."""

    label: str
    options: Sequence[Any]
    value: Any
    help: str = ""
    unit: str = ""

    def widget(self) -> Any:
        import ipywidgets as w

        texts = [_text(option) for option in self.options]
        options = [(f"{text} {self.unit}".rstrip(), option) for text, option in zip(texts, self.options, strict=True)]
        return w.SelectionSlider(options=options, value=self.value, **_look(self.label, self.help))


@dataclass(frozen=True)
class Choice:
    """One of a few words, in a menu."""

    label: str
    options: Sequence[str]
    value: str
    help: str = ""

    def widget(self) -> Any:
        import ipywidgets as w

        return w.Dropdown(options=list(self.options), value=self.value, **_look(self.label, self.help))


@dataclass(frozen=True)
class Text:
    """A few words or numbers to type; they count once Enter is pressed or the box is left."""

    label: str
    value: str
    help: str = ""

    def widget(self) -> Any:
        import ipywidgets as w

        return w.Text(value=self.value, continuous_update=False, **_look(self.label, self.help))


Control = Slider | Steps | Choice | Text


def _text(option: Any) -> str:
    """As every picture and table writes it: ``61,440``, ``0.5``, or the word itself."""
    if isinstance(option, bool) or not isinstance(option, int | float):
        return str(option)
    return f"{option:,}" if isinstance(option, int) else f"{option:g}"


def _look(label: str, tooltip: str) -> dict[str, Any]:
    import ipywidgets as w

    style = {"description_width": "7.5em"}
    return {"description": label, "style": style, "layout": w.Layout(width="25em"), "tooltip": tooltip or label}

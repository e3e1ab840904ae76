"""The widgets of a lab: sliders, Run and Stop, a line that says what goes on, the views, the table."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import TYPE_CHECKING, Any

from course.predict import html
from course.views.table import Table

if TYPE_CHECKING:
    from course.labs.base import Lab


class Panel:
    """Its callbacks may run in a thread of their own, beside a cell: they only read the values and post them."""

    def __init__(self, lab: Lab) -> None:
        import ipywidgets as w

        self._lab = lab
        self._controls = {name: control.widget() for name, control in lab.controls().items()}
        for name, widget in self._controls.items():
            widget.value = lab.values[name]
            widget.observe(self._moved, "value")
        self._run = w.Button(description="Run", button_style="primary", tooltip="run the ranks again with these values")
        self._stop = w.Button(description="Stop", tooltip="end the run")
        self._run.on_click(lambda _: self._post())
        self._stop.on_click(lambda _: lab.stop())
        self._status = w.HTML()
        self._table = w.HTML()
        half = -(-len(self._controls) // 2)
        widgets = list(self._controls.values())
        sliders = w.HBox([w.VBox(widgets[:half]), w.VBox(widgets[half:])], layout=w.Layout(flex_flow="row wrap"))
        buttons = w.HBox([self._run, self._stop])
        views: list[Any] = list(lab.views)
        self.widget = w.VBox([w.HTML(f"<b>{escape(lab.title)}</b>"), sliders, buttons, self._status, *views, self._table])

    def _moved(self, _: Any) -> None:
        self._post()

    def _post(self) -> None:
        self._lab.post({name: widget.value for name, widget in self._controls.items()})

    def grey(self, names: Collection[str]) -> None:
        """Grey these controls, and no others. Any thread."""
        for name, widget in self._controls.items():
            widget.disabled = name in names

    def say(self, text: str, alert: bool = False, running: bool = False) -> None:
        """The line beside the buttons. Any thread."""
        sign = "⚠ " if alert else "▶ " if running else ""
        weight = "bold" if alert else "normal"
        self._status.value = f"<div role='status' style='font-weight:{weight}'>{sign}{html(text)}</div>"

    def show_table(self, table: Table) -> None:
        """Any thread."""
        self._table.value = html_table(table)


def html_table(table: Table) -> str:
    """The rows without the caption: the sliders say the same."""
    cell = "padding:.15em .8em;border-bottom:1px solid var(--jp-border-color2,#ddd);text-align:"
    head = "".join(f'<th scope="col" style="{cell}right;font-weight:normal;opacity:.7">{escape(h)}</th>' for h in table.heads)
    lines = []
    for first, *rest in table.rows:
        others = "".join(f'<td style="{cell}right">{escape(text)}</td>' for text in rest)
        lines.append(f'<tr><th scope="row" style="{cell}left;font-weight:normal">{escape(first)}</th>{others}</tr>')
    return f'<table style="border-collapse:collapse;line-height:1.5"><tr>{head}</tr>{"".join(lines)}</table>'

"""What a view hands to a notebook: the live widget, and a finished picture and text for where no widget runs."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import ipywidgets

from course.views.table import Table

WIDGET = "application/vnd.jupyter.widget-view+json"
TEXTS = ("HTML", "HTMLMath", "Label")


@runtime_checkable
class Still(Protocol):
    """Whatever can be finished: as a PNG and as a table."""

    def png(self) -> bytes: ...

    def table(self) -> Table: ...

    def is_empty(self) -> bool: ...


def picture_bundle(view: Still, widget: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The MIME bundle of ``view``: the widget, and its finished picture."""
    data, metadata = widget if isinstance(widget, tuple) else (widget or {}, {})
    return {**data, **finished(view)}, metadata


def finished(view: Still) -> dict[str, str]:
    """The picture and its text, as they stand now. An empty view goes without a PNG: nothing is drawn yet, and time matters."""
    still = {"text/plain": str(view.table())}
    if not view.is_empty():
        still["image/png"] = base64.b64encode(view.png()).decode()
    return still


def stills(model_ids: list[str]) -> str:
    """For each displayed widget, by model id, what it shows now as static bundles: JSON of ``{id: [bundle, ...]}``.

    Asked by ``course.bake`` in the kernel, after each cell.
    """
    known = ipywidgets.widgets.widget._instances
    return json.dumps({i: list(_parts(known[i])) for i in model_ids if i in known})


def _parts(root: Any) -> Iterator[dict[str, str]]:
    """The words of a widget and of all inside it, then a bundle for each view."""
    inside = list(_walk(root))
    lines = [line for widget in inside if (line := _words(widget))]
    if lines:
        yield {"text/plain": "\n".join(lines)}
    for widget in inside:
        if isinstance(widget, Still):
            yield finished(widget)


def _walk(widget: Any) -> Iterator[Any]:
    if getattr(getattr(widget, "layout", None), "display", None) == "none":
        return
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _walk(child)


def _words(widget: Any) -> str:
    """One line for a control, the text of a label, what an Output caught."""
    kind = type(widget).__name__
    if kind in TEXTS:
        return _without_tags(str(widget.value))
    if getattr(widget, "description", "") and hasattr(widget, "value"):
        value = f"{widget.value:g}" if isinstance(widget.value, float) else str(getattr(widget, "label", None) or widget.value)
        return f"{widget.description}: {value}"
    if kind == "Output":
        return "".join(str(o.get("text", "")) for o in widget.outputs if o.get("output_type") == "stream").strip()
    return ""


def _without_tags(text: str) -> str:
    broken = re.sub(r"</(p|div|li|tr|h\d)>|<br\s*/?>", "\n", re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL))
    plain = html.unescape(re.sub(r"<[^>]+>", " ", broken))
    return "\n".join(line for raw in plain.splitlines() if (line := " ".join(raw.split())))

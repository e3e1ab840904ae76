"""What a view hands to a notebook: the live widget, and a finished picture and text for where no widget runs."""

from __future__ import annotations

import base64
from typing import Any, Protocol

from course.views.table import Table

WIDGET = "application/vnd.jupyter.widget-view+json"


class Still(Protocol):
    """Whatever can be finished: as a PNG and as a table."""

    def png(self) -> bytes: ...

    def table(self) -> Table: ...


def picture_bundle(view: Still, widget: Any, empty: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The MIME bundle of ``view``. An empty view goes without a PNG: nothing is drawn yet, and time matters."""
    data, metadata = widget if isinstance(widget, tuple) else (widget or {}, {})
    return {**data, **finished(view, empty)}, metadata


def finished(view: Still, empty: bool = False) -> dict[str, str]:
    """The picture and its text, as they stand now."""
    still = {"text/plain": str(view.table())}
    if not empty:
        still["image/png"] = base64.b64encode(view.png()).decode()
    return still

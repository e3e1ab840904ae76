"""What the live views share: a header and a buffer for the browser, a PNG and a table for everywhere else."""

from __future__ import annotations

import threading
from typing import Any

import anywidget
import numpy as np
import traitlets
from matplotlib.figure import Figure

from course.live.painter import painter
from course.views.esm import HERE
from course.views.mime import picture_bundle
from course.views.still import to_png
from course.views.table import Table

CSS = (HERE / "view.css").read_text(encoding="utf-8")


class CanvasView(anywidget.AnyWidget):
    """A widget drawn on a canvas. A view keeps its state under ``_drawing`` and says what to send in ``_content``."""

    _css = CSS
    _header = traitlets.Dict().tag(sync=True)
    _frame = traitlets.Bytes().tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self._serial = 0
        self._drawing = threading.RLock()

    def paint(self) -> None:
        """Send the present state to the browser, in one message."""
        with self._drawing:
            header, frame = self._content()
            self._serial += 1
            with self.hold_sync():  # the page never sees the text of one state with the numbers of another
                self._header = {**header, "serial": self._serial}
                self._frame = frame

    def paint_soon(self) -> None:
        """Ask the painter thread; for states that change many times a second."""
        painter.ask(self.paint)

    def _content(self) -> tuple[dict[str, Any], bytes]:
        raise NotImplementedError

    def figure(self) -> Figure:
        """The picture, drawn by matplotlib."""
        raise NotImplementedError

    def table(self) -> Table:
        """The picture in words and numbers."""
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Whether there is nothing to see yet."""
        raise NotImplementedError

    def png(self) -> bytes:
        """The picture as a PNG."""
        with self._drawing:
            figure = self.figure()
        return to_png(figure)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return picture_bundle(self, super()._repr_mimebundle_(**kwargs))


def floats(*arrays: Any) -> bytes:
    """The arrays one after the other as little-endian float32."""
    return b"".join(np.ascontiguousarray(a, dtype="<f4").tobytes() for a in arrays)

"""``Lab``: sliders, a prediction that follows them at once, real ranks that follow a moment later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import SimpleNamespace as Settings
from typing import Any

from course.attended import attended
from course.labs.controls import Control, Steps
from course.labs.driver import Cancelled, Driver, Values
from course.labs.figures import Figures
from course.labs.go import Go
from course.views.canvas_view import CanvasView
from course.views.mime import picture_bundle
from course.views.table import Table


class Lab:
    """What a lesson's lab has in common with all others; ``course.labs`` says how to write one.

    Values given by name replace the sliders' first ones: ``labs.collectives(ranks=8)``. Where nobody can move a slider (see
    ``course.attended``) these values are predicted and run at once, and the lab is a finished picture.
    """

    title = ""

    def __init__(self, **values: Any) -> None:
        self.figures = Figures()
        self.views: list[CanvasView] = self.make_views()
        self.values: Values = {name: control.value for name, control in self.controls().items()}
        unknown = values.keys() - self.values.keys()
        if unknown:
            raise TypeError(f"{self.title} has no setting {min(unknown)!r}; it has {', '.join(self.values)}")
        self.values.update(values)
        self.said = ""
        self.drawn = False  # whether any prediction was shown yet
        self.panel: Any = None
        if attended():
            self._open_panel()
        else:
            self._once()

    # ---- what a lab says about itself

    def controls(self) -> dict[str, Control]:
        """The settings, by the names under which ``predict`` and ``measure`` get them: ``v.ranks``."""
        raise NotImplementedError

    def make_views(self) -> list[CanvasView]:
        """The pictures, from the top."""
        raise NotImplementedError

    def refuse(self, v: Settings) -> str | None:
        """Why these settings are impossible, or None."""
        return None

    def unused(self, v: Settings) -> Collection[str]:
        """The settings that make no difference beside the others: their sliders are greyed."""
        return ()

    def predict(self, v: Settings) -> None:
        """Draw what theory says into the views and ``self.figures``. Fast: it follows a slider on its way."""
        raise NotImplementedError

    def measure(self, go: Go, v: Settings) -> str:
        """Run the ranks by ``go``, draw what they showed; a line that says what was run, and how its numbers came about."""
        raise NotImplementedError

    # ---- predicted and run

    def _predict(self, values: Values) -> None:
        self.figures.found.clear()
        self.figures.predicted.clear()
        self.predict(Settings(**values))
        self.drawn = True
        if self.panel is not None:
            self.panel.show_table(self.table())

    def _measure(self, values: Values, go: Go) -> str:
        said = self.measure(go, Settings(**values))
        if self.panel is not None and not go.cancelled():
            self.panel.show_table(self.table())
        return said

    def _once(self) -> None:
        reason = self.refuse(Settings(**self.values))
        if reason:
            raise ValueError(f"{self.title}: {reason}")
        self._predict(self.values)
        self.said = self._measure(self.values, Go(lambda: False))

    # ---- with widgets

    def _open_panel(self) -> None:
        from course.labs.panel import Panel

        self._telling = threading.Lock()  # what an older run has to say never replaces what newer values were told
        self.driver = Driver(self._follow_prediction, self._follow_ranks)
        self.panel = Panel(self)
        self.post(self.values)

    def post(self, values: Values) -> None:
        """New values: refuse them with the reason, or let the prediction and the ranks follow. Any thread."""
        self.values = dict(values)
        self.panel.grey(self.unused(Settings(**values)))
        reason = self.refuse(Settings(**values))
        with self._telling:
            if reason:
                self.driver.stop()
                shown = " Below stays what was possible last." if self.drawn else ""
                self.panel.say(f"Not possible: {reason.rstrip('.')}.{shown}", alert=True)
            else:
                self.panel.say("The ranks start…", running=True)
                self.driver.post(values)

    def stop(self) -> None:
        """End what runs. Any thread."""
        with self._telling:
            if self.driver.stop():
                self.panel.say("Stopped.")

    def _follow_prediction(self, values: Values) -> None:
        try:
            self._predict(values)
        except Exception as error:
            self.panel.say(f"{type(error).__name__}: {error}", alert=True)

    def _follow_ranks(self, values: Values, cancelled: Callable[[], bool]) -> None:
        def tell(text: str, **sign: bool) -> None:
            with self._telling:
                if not cancelled():  # else it was said why
                    self.panel.say(text, **sign)

        tell("The ranks run…", running=True)
        try:
            tell(self._measure(values, Go(cancelled)))
        except Cancelled:
            pass
        except Exception as error:
            tell(f"{type(error).__name__}: {error}", alert=True)

    # ---- shown

    def settings(self) -> str:
        """The present values in words, without those that make no difference."""
        unused = self.unused(Settings(**self.values))
        shown = [(name, control) for name, control in self.controls().items() if name not in unused]
        units = {name: f" {control.unit}" for name, control in shown if isinstance(control, Steps) and control.unit}
        return ", ".join(f"{control.label} {self.values[name]}{units.get(name, '')}" for name, control in shown)

    def table(self) -> Table:
        """Predicted beside measured."""
        return self.figures.table(f"{self.title}: {self.settings()}")

    def png(self) -> bytes:
        """The views and the table below each other, as one picture."""
        from course.labs.picture import stacked, table_png

        return stacked([*(view.png() for view in self.views), table_png(self.table(), self.said)])

    def is_empty(self) -> bool:
        """Whether there is no finished picture: the widget is the picture."""
        return self.panel is not None

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        widget = self.panel.widget._repr_mimebundle_(**kwargs) if self.panel is not None else {}
        data, metadata = picture_bundle(self, widget)
        return {**data, "text/plain": "\n".join(filter(None, (data["text/plain"], self.said)))}, metadata

"""``RankStates``: one tile per rank that says what it does right now."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course.views.canvas_view import CanvasView
from course.views.esm import bundle
from course.views.kinds import BLUE, GREEN, GREY, ORANGE, VERMILION
from course.views.labels import number
from course.views.still import INK, SOFT, new_figure
from course.views.table import Table

LOOKS = {  # colour, and a sign that does not need colour
    "starting": (GREY, "…"),
    "idle": (BLUE, "○"),
    "running": (GREEN, "▶"),
    "waiting": (ORANGE, "‖"),
    "dead": (VERMILION, "✕"),
}
WATCH = 0.1  # seconds between two looks
SECONDS, REMARK = "seconds: measured", 0.2  # what is said below the tiles, and the inches that it takes


class Moment(NamedTuple):
    """The state of a rank as it was once: its seconds do not run on."""

    rank: int
    state: str
    since: float
    op: str
    axis: str
    where: Any
    seconds: float

    @classmethod
    def of(cls, state: Any) -> Moment:
        return cls(state.rank, state.state, state.since, state.op, state.axis, state.where, state.seconds)


class RankStates(CanvasView):
    """A tile for each rank: idle, running, waiting in a call, dead; since when; on which line.

    ``show`` takes what ``Ranks.states()`` returns, or ``Moment``s of it. ``watch(ranks)`` looks ten times a second, and sends what
    changed.
    """

    _esm = bundle("rank-states.js")

    def __init__(self, ranks: Any = None) -> None:
        super().__init__()
        self.states: list[Any] = []
        self._stop = threading.Event()
        self.paint()
        if ranks is not None:
            self.watch(ranks)

    def show(self, states: Sequence[Any]) -> None:
        """Draw these states. Nothing is sent when they are the ones on show; the seconds run on in the browser."""
        with self._drawing:
            if _key(states) == _key(self.states):
                return
            self.states = list(states)
            self.paint()

    def watch(self, ranks: Any) -> None:
        """Follow a pool of ranks until it is closed, or another is watched."""
        self._stop.set()
        self._stop = threading.Event()
        arguments = (weakref.ref(self), ranks, self._stop)
        threading.Thread(target=_watch, args=arguments, name="minipar rank states", daemon=True).start()

    def is_empty(self) -> bool:
        return not self.states

    def _content(self) -> tuple[dict[str, Any], bytes]:
        return {"tiles": [_tile(s) for s in self.states], "remark": SECONDS if self.states else ""}, b""

    def figure(self) -> Figure:
        count = max(1, len(self.states))
        columns = min(4, count)
        lines = -(-count // columns)
        inches = 0.9 * lines + REMARK
        figure = new_figure(inches)
        below = REMARK / inches
        figure.text(0.01, below / 2, SECONDS, fontsize=7.5, color=SOFT, va="center")
        for i, s in enumerate(self.states):
            tile = _tile(s)
            tall = (1 - below) / lines
            left, bottom = (i % columns) / columns, 1 - (i // columns + 1) * tall
            axes = figure.add_axes((left + 0.01, bottom + 0.05 * tall, 1 / columns - 0.02, 0.9 * tall))
            axes.set_axis_off()
            axes.set_xlim(0, 1)
            axes.set_ylim(0, 1)
            axes.add_patch(Rectangle((0, 0), 1, 1, facecolor="#f6f6f6", edgecolor="#dddddd"))
            axes.add_patch(Rectangle((0, 0), 0.025, 1, facecolor=tile["colour"]))
            axes.text(0.07, 0.76, f"rank {s.rank}", fontsize=9, weight="bold", color=INK, va="center")
            axes.text(0.07, 0.48, tile["text"], fontsize=8, color=INK, va="center")
            since = f"for {s.seconds:.1f} s" if tile["ticks"] or tile["past"] else ""
            axes.text(0.07, 0.20, ", ".join(filter(None, (since, tile["where"]))), fontsize=7.5, color=SOFT, va="center")
        return figure

    def table(self) -> Table:
        """Per rank: state, for how long (measured), call, line."""
        rows = [(f"rank {s.rank}", s.state, number(s.seconds, "s"), s.op or "-", _place(s) or "-") for s in self.states]
        return Table.of(("rank", "state", "for (measured)", "call", "line"), rows)


def _key(states: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(s.rank, s.state, s.since, s.op, isinstance(s, Moment)) for s in states]


def _tile(s: Any) -> dict[str, Any]:
    colour, sign = LOOKS[s.state]
    runs = s.state in ("running", "waiting")
    past = f" for {s.seconds:.1f} s" if runs and isinstance(s, Moment) else ""
    call = f" in {s.op}" + (f" over {s.axis}" if s.axis else "") if s.op else ""
    return {
        "rank": s.rank,
        "state": s.state,
        "colour": colour,
        "sign": sign,
        "text": s.state + call,
        "past": past,
        "seconds": s.seconds,
        "ticks": runs and not past,
        "where": _place(s),
    }


def _place(s: Any) -> str:
    """The user's own line: "line 4 of average"."""
    if not s.where.line:
        return ""
    inside = f" of {s.where.function}" if s.where.function not in ("", "<module>") else ""
    return f"line {s.where.line}{inside}" + (f", {Path(s.where.file).name}" if s.where.file.endswith(".py") else "")


def _watch(view: Callable[[], RankStates | None], ranks: Any, stop: threading.Event) -> None:
    """A thread. It keeps neither the view nor, once they are closed, the ranks alive."""
    while not stop.wait(WATCH):
        shown = view()
        if shown is None or ranks.closed:
            return
        shown.show(ranks.states())
        del shown

"""``predict``: a guess first, then the run; guess, theory and measurement side by side.

    predict("How much of the time are ranks idle at 1 microbatch?", run=measure, theory=0.75, unit="share", low=0, high=1)

As the last line of a cell it shows the question with a slider (or ``choices``); Run unlocks once a guess is made. Where nobody
can answer (see ``course.attended``) a default guess is taken and the run happens at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from course.attended import attended
from course.views.labels import number
from course.views.mime import picture_bundle
from course.views.table import Table
from minipar.trace import SOURCES

Answer = float | str


def predict(
    question: str,
    run: Callable[[], Answer | tuple[Answer, str]],
    theory: Answer | Callable[[], Answer],
    unit: str = "",
    low: float = 0.0,
    high: float = 1.0,
    guess: Answer | None = None,
    choices: Sequence[str] = (),
    source: str = "measured",
    because: str = "",
    witness: str = "these ranks",
) -> Prediction:
    """Ask ``question``; ``run()`` finds the true answer, and ``theory`` is (or computes) the expected one.

    Numbers: ``unit`` is one of ``views.labels.number`` and the slider goes from ``low`` to ``high``. Words: give ``choices``; then
    ``run`` and ``theory`` return one of them. ``source`` says how ``run`` comes by its answer, a word as well as a number: counted,
    measured or paced. ``guess`` is the default guess where nobody answers. ``because`` is one sentence shown with the result.
    ``run`` may return ``(answer, story)`` to show more; let it not print, since a button that is pressed later has no place for
    that. ``witness`` is who gives the answer where no rank runs ("the layout"). Raises ``ValueError`` for another
    ``source``, and where nobody could guess what theory says.
    """
    if source not in SOURCES:
        raise ValueError(f"an answer is one of {', '.join(SOURCES)}, not {source!r}")
    prediction = Prediction(question, run, theory, unit, low, high, tuple(choices), source, because, witness)
    if attended():
        prediction.widget = _ask(prediction, guess)
    else:
        prediction.settle(guess if guess is not None else _default(prediction))
    return prediction


def _default(p: Prediction) -> Answer:
    return p.choices[0] if p.choices else (p.low + p.high) / 2


@dataclass
class Prediction:
    """A question with its three answers: the guess, what theory says, what the run showed."""

    question: str
    run: Callable[[], Answer | tuple[Answer, str]]
    theory: Answer | Callable[[], Answer]
    unit: str
    low: float
    high: float
    choices: tuple[str, ...]
    source: str
    because: str
    witness: str
    guess: Answer | None = None
    expected: Answer | None = None
    found: Answer | None = None
    story: str = ""
    widget: Any = None

    def settle(self, guess: Answer) -> None:
        """Take the guess, then run."""
        self.guess = guess
        self.expected = self.theory() if callable(self.theory) else self.theory
        self._refuse_unguessable(self.expected)
        found = self.run()
        self.found, self.story = found if isinstance(found, tuple) else (found, "")

    def _refuse_unguessable(self, expected: Answer) -> None:
        """A question to which nobody can give the answer that theory gives is the lesson's mistake."""
        if isinstance(expected, str):
            if expected not in self.choices:
                raise ValueError(f"theory says {expected!r}, and the choices are {', '.join(self.choices)}")
        elif not self.low <= expected <= self.high:
            raise ValueError(f"theory says {self.text(expected)}, and a guess is from {self.low:g} to {self.high:g}")

    @property
    def rows(self) -> list[tuple[str, Answer, str]]:
        """``(who, answer, the word for how it was come by)``."""
        rows = [
            ("your guess", self.guess, ""),
            ("theory", self.expected, "predicted"),
            (self.witness, self.found, self.source),
        ]
        return [(who, value, word) for who, value, word in rows if value is not None]

    def text(self, value: Answer) -> str:
        return value if isinstance(value, str) else number(value, self.unit)

    def table(self) -> Table:
        """The answers so far, as text."""
        rows = [(who, self.text(value), word or "-") for who, value, word in self.rows]
        return Table.of(("", "answer", "how"), rows, self.question)

    def words(self) -> str:
        """What is said beside the answers, once they are there."""
        return "\n".join(filter(None, (self.because, self.story))) if self.rows else ""

    def png(self) -> bytes:
        """The answers so far, as bars (numbers) or lines (words)."""
        from course.predict_picture import picture

        return picture(self)

    def is_empty(self) -> bool:
        return self.found is None

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        widget = self.widget._repr_mimebundle_(**kwargs) if self.widget is not None else {}
        data, metadata = picture_bundle(self, widget)
        return {**data, "text/plain": "\n".join(filter(None, (data["text/plain"], self.words())))}, metadata


def _ask(p: Prediction, guess: Answer | None) -> Any:
    """The question as a widget. Its callbacks may run beside a cell, in another thread: they only note and start."""
    import ipywidgets as w

    asked = w.HTML(f"<b>Predict.</b> {p.question}")
    control = _control(p, guess)
    button = w.Button(description="Run", disabled=True, button_style="primary", tooltip="unlocks once you have made a guess")
    note = w.HTML("<i>Make your guess; then Run unlocks.</i>")
    picture = w.Image(format="png", layout=w.Layout(display="none", max_width="760px"))

    def guessed(_: Any) -> None:
        button.disabled = False
        note.value = ""

    def work(answer: Answer) -> None:
        try:
            p.settle(answer)
            picture.value, picture.layout.display = p.png(), "block"
            note.value = html(p.words())
        except BaseException as error:
            note.value = html(f"The run failed: {type(error).__name__}\n{error}")
        button.description, button.disabled = "Run again", False

    def pressed(_: Any) -> None:
        button.description, button.disabled = "Running…", True
        threading.Thread(target=work, args=(control.value,), name="minipar prediction", daemon=True).start()

    control.observe(guessed, "value")
    button.on_click(pressed)
    return w.VBox([asked, w.HBox([control, button]), note, picture])


def html(text: str) -> str:
    """The first line as prose, the rest as it stands."""
    first, _, rest = text.partition("\n")
    style = "margin:.3em 0;line-height:1.3;word-break:normal;overflow-wrap:anywhere"  # JupyterLab would break words anywhere
    return escape(first) + (f"<pre style='{style}'>{escape(rest)}</pre>" if rest else "")


def _control(p: Prediction, guess: Answer | None) -> Any:
    import ipywidgets as w

    style = {"description_width": "initial"}
    if p.choices:
        return w.Dropdown(options=p.choices, value=None, description="your guess", style=style, layout=w.Layout(width="32em"))
    whole = all(float(x).is_integer() for x in (p.low, p.high)) and p.high - p.low > 8
    step = 1 if whole else (p.high - p.low) / 100
    shown = ".0%" if p.unit == "share" else "d" if whole else ".2f"
    kind = w.IntSlider if whole else w.FloatSlider
    cast = int if whole else float
    options = {"min": cast(p.low), "max": cast(p.high), "step": cast(step), "value": cast(p.low), "readout_format": shown}
    return kind(description="your guess", style=style, layout=w.Layout(width="32em"), **options)

"""The colour, pattern and name of each kind of span, the same in the browser and in the PNG.

Colours are those of Okabe and Ito (2008), which people with the common colour-vision deficiencies tell apart; a hatch
repeats the distinction, so the picture also reads in grey.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from minipar.trace import COMM

SKY, ORANGE, GREEN, YELLOW = "#56B4E9", "#E69F00", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#9A9A9A"
BLACK, WHITE = "#111111", "#FFFFFF"


@dataclass(frozen=True)
class Kind:
    """One entry of the legend. ``hatch`` is ``""``, ``"/"``, ``"\\"``, ``"."``, ``"-"``, ``"|"`` or ``"x"``."""

    label: str
    fill: str
    hatch: str = ""
    ink: str = BLACK  # the colour of text on it

    def state(self) -> dict[str, str]:
        return asdict(self)


FORWARD = Kind("forward (F)", SKY)
BACKWARD = Kind("backward (B)", ORANGE, "/")
INPUT_GRAD = Kind("input gradient (I)", YELLOW, ".")
WEIGHT_GRAD = Kind("weight gradient (W)", GREEN, "\\")
OPTIMIZER = Kind("optimizer", PURPLE, "-")
WORK = Kind("other work", GREY)
MIXED = Kind("several", GREY, "|")

_COMPUTE = {
    "f": FORWARD,
    "forward": FORWARD,
    "b": BACKWARD,
    "backward": BACKWARD,
    "i": INPUT_GRAD,
    "w": WEIGHT_GRAD,
    "optimizer": OPTIMIZER,
    "step": OPTIMIZER,
}
_COMM = {
    "all_reduce": Kind("all-reduce", VERMILION, "x"),
    "all_gather": Kind("all-gather", BLUE, "/", WHITE),
    "reduce_scatter": Kind("reduce-scatter", PURPLE, "\\"),
    "all_to_all": Kind("all-to-all", GREEN, "x"),
    "broadcast": Kind("broadcast", YELLOW, "|"),
    "send": Kind("send", BLUE, "", WHITE),
    "recv": Kind("receive", GREY, "."),
    "exchange": Kind("exchange", BLUE, "-", WHITE),
    "barrier": Kind("barrier", GREY, "x"),
}
_OTHER_COMM = Kind("other communication", GREY, "-")


def kind_of(name: str, lane: str) -> Kind:
    """The kind of a span by its name: ``F``, ``B``, ``I``, ``W``, ``optimizer``, or the collective's own name.

    A name that starts with a known one counts as it: ``all_reduce bucket 3`` is an all-reduce, ``forward block`` a forward.
    """
    known, other = (_COMM, _OTHER_COMM) if lane == COMM else (_COMPUTE, WORK)
    word = name.lower().removeprefix("async_").split(" ")[0].rstrip("_0123456789")
    return known.get(word, other)


# cividis (Nunez, Anderton and Renslow, 2018): the same dark-to-bright order for every eye, and in grey
SCALE = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"]

"""An exception or a stack as plain data, so that it can cross to the kernel whatever it was made of."""

from __future__ import annotations

import traceback
from types import FrameType, TracebackType
from typing import NamedTuple

from course.namesake import behind
from course.ranks import wire
from course.ranks.slots import Where
from minipar.trace import now

MOST = 200  # frames kept of a very deep stack


class Failure(NamedTuple):
    """What went wrong on one rank."""

    rank: int
    kind: str  # "raised", "function" (cannot be unpickled), "result" (cannot be pickled), "exit" (sys.exit), "interrupted"
    type: str
    message: str  # as Python prints it: "ValueError: too long", notes included
    frames: tuple[Where, ...]
    time: float
    in_call: str = ""  # the communication call that raised, if it was one: often a consequence of another rank's end
    cause: Failure | None = None
    relation: str = ""
    pickled: bytes = b""  # the exception itself, where it can travel


def failure(rank: int, kind: str, error: BaseException, in_call: str = "") -> Failure:
    cause, relation = _cause(error)
    if cause is None and (said := behind(error)):
        error.add_note(said)
    return Failure(
        rank=rank,
        kind=kind,
        type=type(error).__name__,
        message="".join(traceback.format_exception_only(error)).strip(),
        frames=frames_of_traceback(error.__traceback__),
        time=now(),
        in_call=in_call,
        cause=failure(rank, "raised", cause) if cause is not None else None,
        relation=relation,
        pickled=_pickled(error),
    )


def _cause(error: BaseException) -> tuple[BaseException | None, str]:
    if error.__cause__ is not None:
        return error.__cause__, "This error caused the next one:"
    if error.__context__ is not None and not error.__suppress_context__:
        return error.__context__, "While this error was handled, the next one came:"
    return None, ""


def _pickled(error: BaseException) -> bytes:
    """The exception, if it survives the journey; an exception is often only found unfit on arrival."""
    try:
        data = bytes(wire.dumps(error))
        wire.loads(data)
    except BaseException:
        return b""
    return data if len(data) < 1_000_000 else b""


def frames_of_traceback(trace: TracebackType | None) -> tuple[Where, ...]:
    frames = (Where(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(trace))
    return _ends(list(frames))


def frames_of_stack(frame: FrameType | None) -> tuple[Where, ...]:
    """Outermost first."""
    frames = [Where(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_stack(frame)]
    return _ends(frames[::-1])


def _ends(frames: list[Where]) -> tuple[Where, ...]:
    if len(frames) <= MOST:
        return tuple(frames)
    left_out = Where("", len(frames) - MOST, "")  # no file: the reader says how many were left out
    return (*frames[: MOST // 2], left_out, *frames[-MOST // 2 :])

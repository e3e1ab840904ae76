"""``minipar trace FILE``: check a Chrome trace and sum up, as text, what each rank did."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from minipar.trace import COMM, COMPUTE, SOURCES, Span, Timeline

SLACK = 1e-9  # seconds: what rounding may make of two spans that touch
MOST_RANKS = 2**16


class TraceError(ValueError):
    """The file is no trace that can be drawn; the message says which event is wrong and how."""


def main(path: Path) -> int:
    """Print the summary of the trace at ``path``; 2, and a sentence, if it cannot be read or breaks a rule."""
    try:
        said = summary(load(path))
    except OSError as error:
        print(f"minipar trace: cannot read {path}: {error.strerror}", file=sys.stderr)
        return 2
    except TraceError as error:
        print(f"minipar trace: {path}: {error}", file=sys.stderr)
        return 2
    print(said)
    return 0


def load(path: Path) -> Timeline:
    """The ``Timeline`` in a Chrome trace: ``pid`` is the rank, a named thread is a lane.

    Raises ``TraceError`` for a file that is not a trace, for an event without times, and for two events of a lane that
    overlap: a lane does one thing at a time.
    """
    events, source = _read(path)
    names = {(str(e.get("pid")), str(e.get("tid"))): _named(n, e) for n, e in enumerate(events) if e.get("name") == "thread_name"}
    lanes: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for number, event in enumerate(events):
        if event.get("ph") == "X":
            label = names.get((str(event.get("pid")), str(event.get("tid"))), str(event.get("tid")))
            span = _span(number, event, label)
            lanes[span.rank, label].append(span)
    if not lanes:
        raise TraceError("it holds no event with a duration")
    for (rank, label), row in lanes.items():
        _refuse_overlap(row, f"rank {rank}, lane {label!r}")
    return Timeline([s for row in lanes.values() for s in row], 1 + max(rank for rank, _ in lanes), source)


def _read(path: Path) -> tuple[list[dict[str, Any]], str]:
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise TraceError(f"not JSON: {error}") from None
    except RecursionError:
        raise TraceError("not a Chrome trace: it is nested too deeply") from None
    document = {"traceEvents": document} if isinstance(document, list) else document  # both forms are Chrome traces
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise TraceError("not a Chrome trace: it has no list of traceEvents")
    source = document.get("source", "measured")
    if source not in SOURCES:
        raise TraceError(f"its source is {source!r}, which is none of {', '.join(SOURCES)}")
    return events, source


def _named(number: int, event: dict[str, Any]) -> str:
    args = event.get("args")
    if not isinstance(args, dict) or "name" not in args:
        raise TraceError(f"event {number} names a thread, and does not say how")
    return str(args["name"])


def _span(number: int, event: dict[str, Any], label: str) -> Span:
    try:
        rank, start, duration = int(event["pid"]), float(event["ts"]), float(event["dur"])
        args = dict(event.get("args", {}))
        axis, nbytes = str(args.get("axis", "")), float(args.get("nbytes", 0))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"event {number} has no usable pid, ts, dur or args: {type(error).__name__} {error}") from None
    if not (0 <= rank < MOST_RANKS and duration >= 0 and all(map(math.isfinite, (start, duration, nbytes)))):
        raise TraceError(f"event {number} ({event.get('name')}) has a negative or impossible pid, ts, dur or nbytes")
    lane = label.split(" ")[0] if label.startswith((COMPUTE, COMM)) else label  # "comm 2" is a second row of "comm"
    end = (start + duration) / 1e6
    return Span(rank, lane, str(event.get("name")), start / 1e6, end, axis, nbytes)


def _refuse_overlap(row: list[Span], where: str) -> None:
    row.sort(key=lambda s: s.start)
    for before, after in pairwise(row):
        if after.start < before.end - SLACK:
            starts, ends = f"{after.start * 1e3:.3f} ms", f"{before.end * 1e3:.3f} ms"
            raise TraceError(f"{where}: {after.name} starts at {starts}, before {before.name} ends at {ends}")


def summary(timeline: Timeline) -> str:
    """A table of the ranks' shares of the run's wall time, and of the bytes by mesh axis."""
    lines = [f"{timeline.ranks} ranks, {len(timeline.spans)} spans, {timeline.makespan * 1e3:.3f} ms ({timeline.source})"]
    lines += ["", f"{'rank':>4}  {'busy':>7}  {'comm':>7}  {'idle':>7}  {'overlap':>7}  {'bytes sent':>12}"]
    for rank in range(timeline.ranks):
        part = timeline.breakdown(rank)
        shares = [x / part.wall if part.wall else 0.0 for x in (part.work, part.communication, part.idle)]
        sent = sum(s.nbytes for s in timeline.of(rank, COMM))
        cells = "  ".join(f"{100 * share:5.1f} %" for share in [*shares, timeline.overlap(rank)])
        lines.append(f"{rank:>4}  {cells}  {sent:>12,.0f}")
    lines += ["", "busy: computing. comm: communicating while not computing. overlap: communication hidden behind computing."]
    axes = timeline.bytes_by_axis()
    if axes:
        sizes = ", ".join(f"{name or 'none'} {size:,.0f}" for name, size in sorted(axes.items()))
        lines.append(f"bytes by axis, counted: {sizes}")
    return "\n".join(lines)

"""``minipar trace FILE``: check a Chrome trace and sum up, as text, what each rank did."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from minipar.trace import COMM, COMPUTE, Span, Timeline

SLACK = 1e-9  # seconds: what rounding may make of two spans that touch


class TraceError(ValueError):
    """The file is no trace that can be drawn; the message says which event is wrong and how."""


def main(path: Path) -> int:
    """Print the summary of the trace at ``path``; 1 if it cannot be read or breaks a rule."""
    try:
        print(summary(load(path)))
    except (OSError, TraceError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


def load(path: Path) -> Timeline:
    """The ``Timeline`` in a Chrome trace: ``pid`` is the rank, a named thread is a lane.

    Raises ``TraceError`` for a file that is not a trace, for an event without times, and for two events of a lane that
    overlap: a lane does one thing at a time.
    """
    events, source = _read(path)
    names = {(e.get("pid"), e.get("tid")): str(e["args"]["name"]) for e in events if e.get("name") == "thread_name"}
    lanes: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for number, event in enumerate(events):
        if event.get("ph") == "X":
            label = names.get((event.get("pid"), event.get("tid")), str(event.get("tid")))
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
    document = {"traceEvents": document} if isinstance(document, list) else document  # both forms are Chrome traces
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise TraceError("not a Chrome trace: it has no list of traceEvents")
    return events, document.get("source", "measured")


def _span(number: int, event: dict[str, Any], label: str) -> Span:
    try:
        rank, start, duration = int(event["pid"]), float(event["ts"]), float(event["dur"])
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"event {number} has no usable pid, ts or dur: {error}") from None
    if duration < 0 or rank < 0:
        raise TraceError(f"event {number} ({event.get('name')}) has a negative pid or dur")
    lane = label.split(" ")[0] if label.startswith((COMPUTE, COMM)) else label  # "comm 2" is a second row of "comm"
    args = event.get("args", {})
    end = (start + duration) / 1e6
    return Span(rank, lane, str(event.get("name")), start / 1e6, end, args.get("axis", ""), args.get("nbytes", 0))


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
        cells = "  ".join(f"{share:7.1%}" for share in [*shares, timeline.overlap(rank)])
        lines.append(f"{rank:>4}  {cells}  {sent:>12,.0f}")
    lines += ["", "busy: computing. comm: communicating while not computing. overlap: communication hidden behind computing."]
    axes = timeline.bytes_by_axis()
    if axes:
        sizes = ", ".join(f"{name or 'none'} {size:,.0f}" for name, size in sorted(axes.items()))
        lines.append(f"bytes by axis, counted: {sizes}")
    return "\n".join(lines)

"""A run as a Chrome trace, the format that https://ui.perfetto.dev opens: one process a rank, one thread a lane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipar.trace import Span, Timeline

IN_PLACE = ("rank", "lane", "name", "start", "end")  # fields that have a place of their own in an event


def write(timeline: Timeline, path: str | Path) -> Path:
    """Write ``timeline`` to ``path``. Times are microseconds since its first span."""
    events: list[dict[str, object]] = []
    for rank in range(timeline.ranks):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        for tid, (label, row) in enumerate(timeline.lanes(rank)):
            events.append({"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": label}})
            events.extend(_event(span, tid, timeline.start) for span in row)
    path = Path(path)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "source": timeline.source}))
    return path


def _event(span: Span, tid: int, origin: float) -> dict[str, object]:
    args = {name: value for name, value in span._asdict().items() if name not in IN_PLACE and value not in ("", (), -1, 0)}
    return {
        "ph": "X",
        "pid": span.rank,
        "tid": tid,
        "name": span.name,
        "ts": (span.start - origin) * 1e6,
        "dur": span.seconds * 1e6,
        "args": args,
    }

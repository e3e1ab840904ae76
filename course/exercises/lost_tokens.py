"""Which tokens never reached an expert that they chose, and which reached one too often; and what that looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MANY = 4  # ids that a message names at most, for each expert


def lost_or_doubled(given: Sequence[Sequence[float]], wanted: Sequence[Counter[float]], later: Sequence[set[float]]) -> str | None:
    """The ids by expert that were lost, and those that came too often, with a likely cause; None where each came once.

    By expert: the ids ``given`` to it, those that chose it (``wanted``), and those among them for which it is no first choice.
    """
    lost = [w - Counter(ids) for w, ids in zip(wanted, given, strict=True)]
    doubled = [Counter(ids) - w for w, ids in zip(wanted, given, strict=True)]
    if not any(lost) and not any(doubled):
        return None
    missing, more = sum(c.total() for c in lost), sum(c.total() for c in doubled)
    head = f"{missing} copies of tokens were lost, {more} came too often (counted; their ids are below)"
    lines = [
        f"expert {e}: " + "; ".join(f"{what} {_ids(ids)}" for what, ids in (("lost", lost[e]), ("too often", doubled[e])) if ids)
        for e in range(len(given))
        if lost[e] or doubled[e]
    ]
    if not more and all(set(c) <= seconds for c, seconds in zip(lost, later, strict=True)):
        cause = ": every token reached its first choice, and none its second."
    elif all(len(ids) == w.total() for ids, w in zip(given, wanted, strict=True)):
        cause = ": every expert got the right number of rows, but others' rows. In which order did they leave?"
    elif not missing:
        cause = ": is there padding among the rows?"
    else:
        cause = "." if more else ": no expert is ever full here, whatever the others get."
    return "\n".join([head + cause, *lines])


def _ids(tokens: Counter[float]) -> str:
    names = [f"{i:.0f}" + (f" ({n} times)" if n > 1 else "") for i, n in sorted(tokens.items())]
    return ", ".join(names[:MANY]) + (f" and {len(names) - MANY} more" if len(names) > MANY else "")

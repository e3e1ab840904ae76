"""``build`` makes a schedule by name."""

from __future__ import annotations

from typing import Any

from minipar.pipeline_parallel.interleaved import interleaved
from minipar.pipeline_parallel.one_f_one_b import gpipe, one_f_one_b
from minipar.pipeline_parallel.schedule import Schedule
from minipar.pipeline_parallel.vee import dualpipe_v, zb_v
from minipar.pipeline_parallel.zb_auto import zb_auto
from minipar.pipeline_parallel.zero_bubble import zb_h1

ONE_CHUNK = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}
TWO_CHUNKS = {"zb-v": zb_v, "dualpipe-v": dualpipe_v}
MOST_ACTIONS = 4_000_000  # a forward and a backward of each microbatch on each stage; a table of more would fill the memory
NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "zb-auto")


def build(name: str, ranks: int, microbatches: int, chunks: int | None = None, **options: Any) -> Schedule:
    """The schedule called ``name`` for a pipeline of ``ranks`` ranks with ``chunks`` stages each.

    chunks: any number for "interleaved" (2 if left out); 2 for "zb-v" and "dualpipe-v"; 1 for the others.
    options: for "zb-auto" its memory limit and the costs to plan for, see ``zb_auto``: ``build("zb-auto", 4, 8, memory=8)``.
    Raises ValueError, with the reason, for a combination that no such schedule exists for.
    """
    if name not in NAMES:
        raise ValueError(f"no schedule {name!r}; choose one of {', '.join(NAMES)}")
    chunks = default_chunks(name) if chunks is None else chunks
    for what, number in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{what}={number!r}: a pipeline needs a whole number of {what}, at least 1")
    if name != "interleaved" and chunks != default_chunks(name):
        raise ValueError(
            f"chunks={chunks}: {name} has {default_chunks(name)} chunk(s) on every rank; only interleaved takes any number"
        )
    if 2 * ranks * chunks * microbatches > MOST_ACTIONS:
        raise ValueError(
            f"{microbatches:,} microbatches on {ranks * chunks:,} stages are {2 * ranks * chunks * microbatches:,} actions: "
            f"a schedule is written out, and holds at most {MOST_ACTIONS:,}"
        )
    if options and name != "zb-auto":
        raise ValueError(f"{name} takes no {', '.join(options)}; that is for zb-auto")
    if name == "zb-auto":
        return zb_auto(ranks, microbatches, **options)
    if name == "interleaved":
        return interleaved(ranks, microbatches, chunks)
    return (ONE_CHUNK | TWO_CHUNKS)[name](ranks, microbatches)


def default_chunks(name: str) -> int:
    """How many chunks a schedule puts on every rank, if nothing else is said."""
    return 2 if name in TWO_CHUNKS or name == "interleaved" else 1

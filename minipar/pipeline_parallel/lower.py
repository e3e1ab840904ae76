"""From a schedule to programs: sends and receives put between the actions, in an order that cannot hang.

All events of the run are put into one line: the actions by the time they start, and each message directly behind the action
that makes it. Every rank's program is what that line holds for this rank, so both ends of a message are placed at once. Even
if a send blocks until its receive, the foremost event of the line that is not done can always be done: both its ranks have
arrived at it. Programs made like this never hang, on any network.

    rank 0   F0 >F0  F1 >F1           <B0 B0                the sender (>) places the receive (<) of its peer
    rank 1      <F0  F0 <F1  B0 >B0   F1 ...
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from minipar.pipeline_parallel.action import Instruction, Transfer, consumer, makes, needs
from minipar.pipeline_parallel.simulate import action_times

if TYPE_CHECKING:
    from minipar.pipeline_parallel.schedule import Schedule


def lower(schedule: Schedule, **costs: Any) -> list[list[Instruction]]:
    """One program per rank: its actions in their order, and a ``Transfer`` for each end of each message.

    ``costs``, as for ``simulate``, say when each action is expected to start; left out, all cost the same.
    """
    programs: list[list[Instruction]] = [[] for _ in range(schedule.ranks)]
    for rank, slot in _in_order_of_start(schedule, costs):
        action = schedule.rows[rank][slot]
        programs[rank].append(action)
        target = consumer(action, schedule.stages)
        peer = rank if target is None else schedule.placement[target]
        if peer != rank:
            what = makes(action) or ""
            programs[rank].append(Transfer("send", what, action.stage, action.microbatch, peer))
            programs[peer].append(Transfer("recv", what, action.stage, action.microbatch, rank))
    return programs


def _in_order_of_start(schedule: Schedule, costs: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """``(rank, slot)`` of every action by its simulated start; what needs another action comes behind it, equal starts or not."""
    starts = action_times(schedule, **costs).starts
    made: set[tuple[str, int, int]] = set()
    waiting: dict[tuple[str, int, int], tuple[int, int]] = {}
    ready = [(starts[rank][0], rank, 0) for rank in range(schedule.ranks) if schedule.rows[rank]]
    heapify(ready)
    while ready:
        _, rank, slot = heappop(ready)
        action = schedule.rows[rank][slot]
        absent = [key for what, s in needs(action, schedule.stages) if (key := (what, s, action.microbatch)) not in made]
        if absent:
            waiting[absent[0]] = (rank, slot)
            continue
        yield rank, slot
        key = (makes(action) or "", action.stage, action.microbatch)
        made.add(key)
        following = [(rank, slot + 1)] if slot + 1 < len(schedule.rows[rank]) else []
        if key in waiting:
            following.append(waiting.pop(key))
        for r, k in following:
            heappush(ready, (starts[r][k], r, k))

"""What makes a schedule legal. ``check`` goes through the rules and names the first one that is broken, and where."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from minipar.pipeline_parallel.action import KINDS, Action, Instruction, ScheduleError, Transfer, makes, needs

if TYPE_CHECKING:
    from minipar.pipeline_parallel.schedule import Schedule


def check(schedule: Schedule) -> None:
    """Raise a ``ScheduleError`` unless every action is there once, on its rank, and in an order that can run to its end."""
    if schedule.microbatches < 1:
        raise ScheduleError("microbatches", f"a schedule needs at least one microbatch, not {schedule.microbatches}")
    done: set[tuple[str, int, int]] = set()  # per rank in turn: (kind, stage, microbatch)
    for rank, row in enumerate(schedule.rows):
        for slot, action in enumerate(row):
            _check_slot(schedule, rank, slot, action, done)
            done.add(action)
    _check_complete(schedule, done)
    _check_progress(schedule)


def check_rows(schedule: Schedule) -> None:
    """The rules that are not about order, fast, by counting; ``check`` then finds the words for what is wrong."""
    whole = schedule.microbatches > 0 and all(_row_is_whole(schedule, rank) for rank in range(schedule.ranks))
    if not whole:
        check(schedule)


def _row_is_whole(schedule: Schedule, rank: int) -> bool:
    """Whether a rank's row holds each action once, and no other."""
    row, own, m = schedule.rows[rank], schedule.stages_of(rank), schedule.microbatches
    if not row or not own:
        return not row and not own
    kinds, stages, microbatches = zip(*row, strict=True)
    known = set(kinds) <= KINDS.keys() and set(stages) == set(own) and min(microbatches) >= 0 and max(microbatches) < m
    if not known or len(set(row)) != len(row) or kinds.count("F") != m * len(own):
        return False
    if kinds.count("B") == m * len(own):
        return len(row) == 2 * m * len(own)
    backward = {kind: {a[1:] for a in row if a.kind == kind} for kind in "BIW"}
    return backward["I"] == backward["W"] and len(backward["B"] | backward["I"]) == m * len(own) == kinds.count("B") + kinds.count(
        "I"
    )


def _check_slot(schedule: Schedule, rank: int, slot: int, action: Action, done: set[tuple[str, int, int]]) -> None:
    kind, stage, microbatch = action

    def refuse(rule: str, why: str) -> ScheduleError:
        return ScheduleError(rule, f"{schedule.show(action)} {why}", rank, slot)

    if kind not in KINDS:
        raise refuse("unknown", f"is not an action: the kinds are {', '.join(KINDS)}")
    if not 0 <= stage < schedule.stages:
        raise refuse("unknown", f"names stage {stage}, and the stages are 0 to {schedule.stages - 1}")
    if not 0 <= microbatch < schedule.microbatches:
        raise refuse("unknown", f"names microbatch {microbatch}, and the microbatches are 0 to {schedule.microbatches - 1}")
    if schedule.placement[stage] != rank:
        raise refuse("placement", f"belongs to stage {stage}, which lives on rank {schedule.placement[stage]}")
    if action in done:
        raise refuse("doubled", "stands here a second time")
    for other in ("I", "W") if kind == "B" else ("B",) if kind in "IW" else ():
        if (other, stage, microbatch) in done:
            raise refuse("mixed", f"and {other}{microbatch} of the same stage: a backward is either one B, or an I and a W")
    for what, source in needs(action, schedule.stages):
        if schedule.placement[source] == rank and not _has(done, what, source, microbatch):
            first = "I" if kind == "W" else what
            wanted = schedule.show(Action(first, source, microbatch))
            if not _has(schedule.rows[rank], what, source, microbatch):
                raise refuse("missing", f"needs {wanted}, which is missing")
            raise refuse("order", f"comes before {wanted}, which it needs")


def _has(done: Collection[tuple[str, int, int]], what: str, stage: int, microbatch: int) -> bool:
    return (what, stage, microbatch) in done or (what == "B" and ("I", stage, microbatch) in done)


def _check_complete(schedule: Schedule, done: set[tuple[str, int, int]]) -> None:
    for stage, rank in enumerate(schedule.placement):
        for microbatch in range(schedule.microbatches):
            absent = [kind for kind in "FBIW" if (kind, stage, microbatch) not in done]
            if "F" in absent:
                missing = "F"
            elif "B" in absent and "I" in absent:
                missing = "B"
            elif "B" in absent and "W" in absent:
                missing = "W"
            else:
                continue
            raise ScheduleError("missing", f"missing {schedule.show(Action(missing, stage, microbatch))}", rank)


def _check_progress(schedule: Schedule) -> None:
    """Run the table: each rank does its next action as soon as what it needs is there. All must reach their end."""
    finished: set[tuple[str, int, int]] = set()
    position = [0] * schedule.ranks
    waiting: dict[tuple[str, int, int], list[int]] = {}
    ready = deque(range(schedule.ranks))
    while ready:
        rank = ready.popleft()
        row = schedule.rows[rank]
        while position[rank] < len(row):
            action = row[position[rank]]
            absent = [key for what, s in needs(action, schedule.stages) if (key := (what, s, action.microbatch)) not in finished]
            if absent:
                waiting.setdefault(absent[0], []).append(rank)
                break
            position[rank] += 1
            made = makes(action)
            if made:
                key = (made, action.stage, action.microbatch)
                finished.add(key)
                ready.extend(waiting.pop(key, ()))
    _explain_stall(schedule, position, waiting)


def _explain_stall(schedule: Schedule, position: list[int], waiting: dict[tuple[str, int, int], list[int]]) -> None:
    stuck = {rank: Action(*key) for key, ranks in waiting.items() for rank in ranks}
    if not stuck:
        return
    rank = min(stuck)
    what = "; ".join(
        f"rank {r} stands at {schedule.show(schedule.rows[r][position[r]])} and waits for "
        f"{schedule.show(wanted)} from rank {schedule.placement[wanted.stage]}"
        for r, wanted in sorted(stuck.items())
    )
    raise ScheduleError("deadlock", f"nobody can go on: {what}", rank, position[rank])


def check_rendezvous(programs: Sequence[Sequence[Instruction]]) -> None:
    """Raise a ``ScheduleError`` if lowered programs hang when a send blocks until its receive, and a receive until its send.

    That is the strictest network there is: a program that gets through needs no buffering from any backend.
    """
    position = [0] * len(programs)
    moved = deque(range(len(programs)))
    while moved:
        rank = moved.popleft()
        while (instruction := _at(programs, position, rank)) is not None:
            if isinstance(instruction, Transfer):
                peer = instruction.peer
                other = _at(programs, position, peer)
                if not (isinstance(other, Transfer) and _match(rank, instruction, other)):
                    break
                position[peer] += 1
                moved.append(peer)
            position[rank] += 1
    stuck = [rank for rank in range(len(programs)) if position[rank] < len(programs[rank])]
    if stuck:
        what = "; ".join(f"rank {r} blocks in {_sentence(programs[r][position[r]])}" for r in stuck)
        raise ScheduleError(
            "rendezvous", f"these programs hang where a send waits for its receive: {what}", stuck[0], position[stuck[0]]
        )


def _at(programs: Sequence[Sequence[Instruction]], position: list[int], rank: int) -> Instruction | None:
    return programs[rank][position[rank]] if position[rank] < len(programs[rank]) else None


def _match(rank: int, mine: Transfer, theirs: Transfer) -> bool:
    """Whether these are the two ends of one message."""
    return theirs.peer == rank and mine.way != theirs.way and mine[1:4] == theirs[1:4]


def _sentence(instruction: Instruction) -> str:
    if isinstance(instruction, Action):
        return str(instruction)
    kind = "the activation" if instruction.what == "F" else "the gradient"
    verb, word = ("sending", "to") if instruction.way == "send" else ("receiving", "from")
    return (
        f"{verb} {kind} of microbatch {instruction.microbatch}, made by stage {instruction.stage}, {word} rank {instruction.peer}"
    )

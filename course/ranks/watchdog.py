"""Explains a hang: who waits in which call on which line, who never came, what differs.

A rank's wait is *possible* if every peer it lacks may still come. Ranks that returned will not; ranks that wait for each other
will not either. What remains when all possible waits are taken away is stuck for good, and is told to the learner.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from course.ranks import errors
from course.ranks.calls import COLLECTIVE, RECV, SEND, Call, Ledger, Record, from_text
from course.ranks.report import Failure
from course.ranks.slots import RankState, Where
from minipar.trace import now

if TYPE_CHECKING:
    from course.ranks.pool import Pool

PATIENCE = 0.5  # seconds in one call before anybody is asked
REPEAT = 0.3  # seconds between two looks that must agree
MEET_LIMIT = 1.5  # seconds for ranks that still work to come to the call, so that all is told at once


class Scene(NamedTuple):
    """What all ranks were doing at one moment."""

    ledgers: dict[int, Ledger]  # of the ranks that answered; of a dead one, its last call
    stacks: dict[int, tuple[Where, ...]]
    finished: frozenset[int]  # ranks that returned from the function, or raised
    dead: dict[int, int]  # rank -> its exit code
    failures: dict[int, Failure]
    states: tuple[RankState, ...]  # by rank

    @classmethod
    def of(cls, pool: Pool, answers: dict[int, dict[str, Any]]) -> Scene:
        last = {m.rank: from_text(m.last_words) for m in pool.members if not m.alive}
        died = {rank: Ledger((Record(c.channel, c.side, c.members, c.number, 0, (c,)),), None) for rank, c in last.items() if c}
        return cls(
            {rank: a["ledger"] for rank, a in answers.items()} | died,
            {rank: a["stack"] for rank, a in answers.items()},
            frozenset(m.rank for m in pool.members if m.finished),
            {m.rank: m.status for m in pool.members if not m.alive},
            {m.rank: m.failure for m in pool.members if m.failure is not None},
            tuple(pool.states()),
        )

    def waiting(self, rank: int) -> Call | None:
        ledger = self.ledgers.get(rank)
        return ledger.waiting if ledger is not None and rank not in self.finished else None


class Suspect:
    """Looks at one run again and again; two looks that see the same hang make it one."""

    def __init__(self) -> None:
        self._asked: tuple[int, float] | None = None
        self._before: object = None
        self._certain: float | None = None  # since when
        self._next = 0.0

    def look(self, pool: Pool) -> list[str]:
        """Reader thread. The explanation, once the ranks are stuck beyond doubt; else nothing."""
        if self._asked is None:
            if now() >= self._next and any(s.state == "waiting" and s.seconds > PATIENCE for s in pool.states()):
                self._asked = (pool.ask(), now())
            return []
        number, since = self._asked
        answers = pool.answers(number)
        if len(answers) < sum(m.alive for m in pool.members) and now() - since < REPEAT:
            return []
        self._asked, self._next = None, now() + REPEAT
        scene = Scene.of(pool, answers)
        lines = difference(scene.ledgers) or hang(scene)
        evidence = (lines, [(s.version, s.state) for s in scene.states if s.rank in stuck(scene)])
        if not lines or evidence != self._before:
            self._before, self._certain = evidence, None
            return []
        self._certain = self._certain or now()
        return [] if _still_at_work(scene) and now() - self._certain < MEET_LIMIT else lines


def _still_at_work(scene: Scene) -> bool:
    """Whether a rank may yet come to a call of its own, or has not said in which one it is."""
    unfinished = [s for s in scene.states if s.rank not in scene.finished and s.rank not in scene.dead]
    return any(s.state != "waiting" or s.rank not in scene.ledgers for s in unfinished)


# ---- who can still go on


def stuck(scene: Scene) -> set[int]:
    """The ranks that can never return from the call they wait in."""
    waits = {rank: call for rank in scene.ledgers if (call := scene.waiting(rank)) is not None}
    lacks = {rank: lacking(rank, call, scene) for rank, call in waits.items()}
    lost = {rank for rank, missing in lacks.items() if missing}
    while True:
        freed = {rank for rank in lost if _may_all_come(waits[rank], lacks[rank], lost, scene)}
        if not freed:
            return lost
        lost -= freed


def _may_all_come(call: Call, missing: set[int], lost: set[int], scene: Scene) -> bool:
    may = {peer for peer in missing if peer not in lost and peer not in scene.finished and peer not in scene.dead}
    if call.side == RECV and call.members[0] == -1:  # from any rank: one is enough
        return bool(may)
    return may == missing


def lacking(rank: int, call: Call, scene: Scene) -> set[int]:
    """The peers that have not made their part of ``call`` yet."""
    if call.side == COLLECTIVE:
        peers = set(call.members) - {rank}
        return {peer for peer in peers if _count(scene, peer, call.channel, COLLECTIVE, call.members) < call.number}
    source, destination = call.members
    if source == -1:
        others = set(range(len(scene.states))) - {rank}
        sent = sum(_count(scene, peer, call.channel, SEND, (peer, rank)) for peer in others)
        return set() if sent >= call.number else others
    side, peer = (SEND, source) if call.side == RECV else (RECV, destination)
    done = _count(scene, peer, call.channel, side, call.members)
    if side == RECV:
        done += _count(scene, peer, call.channel, RECV, (-1, peer))
    return set() if done >= call.number else {peer}


def _count(scene: Scene, rank: int, channel: str, side: str, members: tuple[int, ...]) -> int:
    ledger = scene.ledgers.get(rank)
    if ledger is None:
        return 1 << 60 if rank not in scene.dead else 0  # it did not answer: nothing can be said against it
    return next((r.total for r in ledger.records if (r.channel, r.side, r.members) == (channel, side, members)), 0)


# ---- what to say


def hang(scene: Scene) -> list[str]:
    """Lines that explain why ranks are stuck; empty if none is."""
    lost = stuck(scene)
    if not lost:
        return []
    groups: dict[tuple[str, str, Where], list[int]] = defaultdict(list)
    for rank in sorted(lost):
        call = scene.waiting(rank)
        assert call is not None
        groups[call.op, call.signature, call.where].append(rank)
    lines = []
    for (op, signature, where), ranks in groups.items():
        verb = "waits" if len(ranks) == 1 else "wait"
        lines.append(f"{errors.these_ranks(ranks)} {verb} in {op}({signature}), {errors.place(where)}")
        lines += errors.code_line(where)
    missing = {peer: scene.waiting(rank) for rank in sorted(lost) for peer in sorted(lacking(rank, scene.waiting(rank), scene))}  # type: ignore[arg-type]
    lines += [f"rank {peer} {_absence(peer, call, scene, lost)}" for peer, call in missing.items() if call is not None]
    return lines + [line for rank in sorted(lost) for line in _never_waited_for(rank, scene)]


def _never_waited_for(rank: int, scene: Scene) -> list[str]:
    """Messages that this rank let go and that are before, or behind, the one it is stuck in."""
    call = scene.waiting(rank)
    assert call is not None
    way = (call.channel, call.side, call.members)
    others = [c for c in scene.ledgers[rank].unwaited if (c.channel, c.side, c.members) == way and c.number != call.number]
    if not others:
        return []
    told = f"rank {rank} has started {len(others)} more {others[0].op} this way and not waited for {'them' if others[1:] else 'it'}"
    return [f"{told}, {errors.place(others[0].where)}", *errors.code_line(others[0].where)]


def _absence(peer: int, call: Call, scene: Scene, lost: set[int]) -> str:
    part = "send that message" if call.side == RECV else "receive that message" if call.side == SEND else f"call {call.op}"
    where = scene.waiting(peer)
    if peer in scene.dead:
        return f"will never {part}: it is dead"
    if peer in scene.finished:
        return f"never came to {part}: it has returned from the function"
    if where is not None and peer in lost:
        return f"has not come to {part}: it waits in {where.op} itself"
    return f"has not come to {part} yet: it is {scene.states[peer].state}"


def difference(ledgers: dict[int, Ledger]) -> list[str]:
    """Lines that name the first call at which the members of a group did different things; empty if they agree."""
    collectives: dict[tuple[str, tuple[int, ...]], dict[int, Record]] = defaultdict(dict)
    for rank, ledger in ledgers.items():
        for record in ledger.records:
            if record.side == COLLECTIVE:
                collectives[record.channel, record.members][rank] = record
    for by_rank in collectives.values():
        if lines := _first_difference({rank: {c.number: c for c in r.recent} for rank, r in by_rank.items()}):
            return lines
    return _different_messages(ledgers)


def _first_difference(calls: dict[int, dict[int, Call]]) -> list[str]:
    for index in sorted({i for known in calls.values() for i in known}):
        at = {rank: known[index] for rank, known in calls.items() if index in known}
        if len({call.agree for call in at.values()}) > 1:
            return [f"the ranks disagree at call {index} of this group:", *_who_called_what(at)]
    return []


def _who_called_what(at: dict[int, Call]) -> list[str]:
    groups: dict[tuple[str, str, Where], list[int]] = defaultdict(list)
    for rank, call in sorted(at.items()):
        groups[call.op, call.signature, call.where].append(rank)
    lines = []
    for (op, signature, where), ranks in groups.items():
        lines.append(f"{errors.these_ranks(ranks)} called {op}({signature}), {errors.place(where)}")
        lines += errors.code_line(where)
    return lines


def _different_messages(ledgers: dict[int, Ledger]) -> list[str]:
    sent: dict[tuple[str, tuple[int, ...]], dict[int, Call]] = {}
    got: dict[tuple[str, tuple[int, ...]], dict[int, Call]] = {}
    for ledger in ledgers.values():
        for r in ledger.records:
            if r.side != COLLECTIVE:
                (sent if r.side == SEND else got)[r.channel, r.members] = {c.number: c for c in r.recent}
    for key in sent.keys() & got.keys():
        for index in sorted(sent[key].keys() & got[key].keys()):
            a, b = sent[key][index], got[key][index]
            if a.agree != b.agree:
                source, destination = key[1]
                lines = ["a message and the tensor that receives it differ:"]
                return lines + _who_called_what({source: a, destination: b})
    return []


# ---- after a run that returned everywhere


def out_of_step(tallies: dict[int, tuple[Record, ...]]) -> list[str]:
    """Lines that tell which ranks made fewer, or other, calls than their peers though nobody waited; empty if none."""
    groups: dict[tuple[str, tuple[int, ...]], dict[int, Record]] = defaultdict(dict)
    messages: dict[tuple[str, tuple[int, ...]], list[Record]] = defaultdict(list)
    for rank, records in tallies.items():
        for r in records:
            if r.side == COLLECTIVE:
                groups[r.channel, r.members][rank] = r
            else:
                messages[r.channel, r.members].append(r)
    for (_, members), known in groups.items():
        counts = {rank: known[rank].total if rank in known else 0 for rank in members}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"rank {rank}: {count}" for rank, count in counts.items())
            return [f"the ranks of one group made different numbers of collective calls ({told})"]
        if len({known[rank].digest for rank in members}) > 1:
            return ["the ranks made different collective calls, or with different tensors, so the results are not to be trusted"]
    for sides in messages.values():
        if len({r.total for r in sides}) == 1 < len({r.digest for r in sides}):
            return ["a message was received into a tensor of another size or type, so the results are not to be trusted"]
    return []


def details(ledgers: dict[int, Ledger]) -> list[str]:
    """The calls behind ``out_of_step``, with their lines, as far as they are remembered."""
    if lines := difference(ledgers):
        return lines
    groups: dict[tuple[str, tuple[int, ...]], dict[int, Record]] = defaultdict(dict)
    for rank, ledger in ledgers.items():
        for r in ledger.records:
            if r.side == COLLECTIVE:
                groups[r.channel, r.members][rank] = r
    for (_, members), known in groups.items():
        fewest = min(known[rank].total if rank in known else 0 for rank in members)
        extra = {rank: c for rank, r in known.items() for c in r.recent if c.number == fewest + 1}
        absent = [rank for rank in members if rank not in extra]
        if extra and absent:
            op = next(iter(extra.values())).op
            return [*_who_called_what(extra), f"{errors.these_ranks(absent)} never came to call {op}"]
    return []


def unclaimed(tallies: dict[int, tuple[Record, ...]]) -> list[str]:
    """Messages that were sent and that nobody received, one sentence for each pair of ranks."""
    sent: dict[tuple[int, int], int] = defaultdict(int)
    from_anyone = {r.members[1] for records in tallies.values() for r in records if r.members[0] == -1}
    for records in tallies.values():
        for r in records:
            if r.side != COLLECTIVE and r.members[1] not in from_anyone:
                sent[r.members[0], r.members[1]] += r.total if r.side == SEND else -r.total
    return [
        f"rank {source} sent {count} message{'s' * (count > 1)} to rank {destination} that it never received"
        for (source, destination), count in sorted(sent.items())
        if count > 0
    ]

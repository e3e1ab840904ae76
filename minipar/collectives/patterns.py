"""Who sends what to whom, in which step: each all-reduce as a list of messages, without running it.

A rank enters a step when its own messages of the step before are done (or of an earlier step, where several may be under way at
once); steps of different ranks need not coincide. The tests hold these lists against the messages that real ranks sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from minipar.collectives.recursive_doubling import power_of_two
from minipar.collectives.segmented_ring import SEGMENT_BYTES, segments_of


class Message(NamedTuple):
    step: int
    source: int
    to: int
    nbytes: int


class Pattern(NamedTuple):
    """The messages of one collective on ``n`` ranks in order of their steps. A step waits for the one ``depth`` steps before it."""

    n: int
    messages: list[Message]
    depth: int = 1

    def waits_for(self, step: int) -> int:
        """How many of the first steps must be over before ``step`` can begin."""
        return max(0, step + 1 - self.depth)

    def sent(self, rank: int) -> int:
        """Bytes that ``rank`` sends in all."""
        return sum(m.nbytes for m in self.messages if m.source == rank)

    def by_step(self) -> list[list[Message]]:
        steps: list[list[Message]] = [[] for _ in range(max((m.step for m in self.messages), default=-1) + 1)]
        for message in self.messages:
            steps[message.step].append(message)
        return steps


def pattern(algorithm: str, n: int, elements: int, itemsize: int = 4, segment_bytes: int = SEGMENT_BYTES) -> Pattern:
    """The messages of an all-reduce of ``elements`` numbers of ``itemsize`` bytes, by an algorithm of ``ALL_REDUCE``."""
    if algorithm == "segmented ring":
        segments = segments_of(_shares(elements, n)[0] * itemsize, segment_bytes)
        return Pattern(n, list(_ring(n, elements, itemsize, segments)), depth=segments)
    if algorithm not in _PLAIN:
        raise ValueError(f"no all-reduce called {algorithm!r}; choose one of {', '.join([*_PLAIN, 'segmented ring'])}")
    return Pattern(n, list(_PLAIN[algorithm](n, elements, itemsize)))


def _naive(n: int, elements: int, itemsize: int) -> Iterator[Message]:
    yield from (Message(0, rank, 0, elements * itemsize) for rank in range(1, n))
    yield from (Message(1, 0, rank, elements * itemsize) for rank in range(1, n))


def _tree(n: int, elements: int, itemsize: int) -> Iterator[Message]:
    levels = (n - 1).bit_length()
    branches = [[(rank, rank + 2**level) for rank in range(0, n - 2**level, 2 ** (level + 1))] for level in range(levels)]
    for level in range(levels):
        yield from (Message(level, child, parent, elements * itemsize) for parent, child in branches[level])
    for step, level in enumerate(reversed(range(levels)), start=levels):
        yield from (Message(step, parent, child, elements * itemsize) for parent, child in branches[level])


def _doubling(n: int, elements: int, itemsize: int) -> Iterator[Message]:
    core = power_of_two(n)
    steps = core.bit_length() - 1
    yield from (Message(0, core + i, i, elements * itemsize) for i in range(n - core))
    for step in range(steps):
        yield from (Message(step + 1, rank, rank ^ 2**step, elements * itemsize) for rank in range(core))
    yield from (Message(steps + 1, i, core + i, elements * itemsize) for i in range(n - core))


def _halving(n: int, elements: int, itemsize: int) -> Iterator[Message]:
    core = power_of_two(n)
    steps = core.bit_length() - 1
    kept = [elements] * core  # elements whose sum each rank still works on
    given: list[list[int]] = []  # in each step, the elements that each rank gives away
    yield from (Message(0, core + i, i, elements * itemsize) for i in range(n - core))
    for step in range(steps):
        distance = core >> (step + 1)
        halves = [_shares(kept[rank], 2) for rank in range(core)]
        upper = [rank & distance != 0 for rank in range(core)]
        given.append([halves[rank][0 if upper[rank] else 1] for rank in range(core)])
        kept = [halves[rank][1 if upper[rank] else 0] for rank in range(core)]
        yield from (Message(step + 1, rank, rank ^ distance, given[step][rank] * itemsize) for rank in range(core))
    for step in reversed(range(steps)):
        distance = core >> (step + 1)
        at = 2 * steps - step
        yield from (Message(at, rank, rank ^ distance, given[step][rank ^ distance] * itemsize) for rank in range(core))
    yield from (Message(2 * steps + 1, i, core + i, elements * itemsize) for i in range(n - core))


def _ring(n: int, elements: int, itemsize: int, segments: int = 1) -> Iterator[Message]:
    """Each piece may travel in segments, one after the other."""
    shares = [_shares(share, segments) for share in _shares(elements, n)]
    for step in range(2 * (n - 1) * segments):
        hop, i = divmod(step, segments)
        for rank in range(n):
            yield Message(step, rank, (rank + 1) % n, shares[(rank - 1 - hop) % n][i] * itemsize)


_PLAIN: dict[str, Callable[[int, int, int], Iterator[Message]]] = {
    "naive": _naive,
    "tree": _tree,
    "recursive doubling": _doubling,
    "recursive halving": _halving,
    "ring": _ring,
}


def _shares(elements: int, count: int) -> list[int]:
    """How many elements each of ``count`` pieces holds, cut as ``pieces.cut`` does."""
    each, rest = divmod(elements, count)
    return [each + 1] * rest + [each] * (count - rest)

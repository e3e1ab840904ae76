"""One training step of a small GPT as ``minipar.blend`` would run it: what is asked, and which part of it each rank gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

from minipar.checks import not_above_zero, not_one_of, not_whole
from minipar.choices import BUCKET_BYTES, METHODS
from minipar.context_parallel.layout import TokenLayout
from minipar.expert_parallel.dispatch import experts_by_rank
from minipar.model import GPTConfig
from minipar.pipeline_parallel import NAMES, Schedule, build
from minipar.pipeline_parallel.action import Instruction

DENSE = ("pp", "dp", "cp", "tp")  # outermost first, as in ``minipar.mesh``
AXES = (*DENSE, "edp", "ep")


class Place(NamedTuple):
    """Where a rank stands on the dense axes."""

    pp: int
    dp: int
    cp: int
    tp: int


@dataclass(frozen=True)
class Job:
    """A step on a global batch of ``rows`` sequences, split over a mesh. The sizes are those of ``minipar.Mesh``.

    The other fields are the options of ``blend.build``. ``number_bytes`` is 4 for float32, 8 for float64.
    """

    config: GPTConfig
    rows: int = 8
    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int | None = None
    sequence_parallel: bool = False
    context: str = "zigzag"
    bucket_bytes: float = BUCKET_BYTES
    number_bytes: int = 4

    @property
    def mesh(self) -> dict[str, int]:
        """The arguments of ``minipar.Mesh``."""
        return {name: getattr(self, name) for name in ("dp", "pp", "cp", "tp", "ep")}

    @property
    def options(self) -> dict[str, Any]:
        """The options of ``blend.build``."""
        names = ("microbatches", "schedule", "chunks", "sequence_parallel", "context", "bucket_bytes")
        return {name: getattr(self, name) for name in names}

    @property
    def ranks(self) -> int:
        return self.dp * self.pp * self.cp * self.tp

    @property
    def tokens(self) -> int:
        """Of the global batch."""
        return self.rows * self.config.seq

    @property
    def splits_sequence(self) -> bool:
        """Whether what lies between the matrices is split over tp, too."""
        return self.sequence_parallel and self.tp > 1

    @cached_property
    def plan(self) -> Schedule:
        """The pipeline's schedule; of one rank where there is no pipeline."""
        return build(self.schedule if self.pp > 1 else "1f1b", self.pp, self.microbatches, self.chunks if self.pp > 1 else None)

    @cached_property
    def programs(self) -> list[list[Instruction]]:
        """What each rank of the pipeline does, messages included."""
        return self.plan.lower() if self.pp > 1 else [list(row) for row in self.plan.rows]

    def size(self, axis: str) -> int:
        """Ranks along a mesh axis, or a joint one such as "dp+cp"."""
        return prod(self._sizes[name] for name in axis.split("+")) if axis else 1

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {**self.mesh, "edp": self.dp * self.cp * self.tp // self.ep, "world": self.ranks}

    def joint(self, *names: str) -> str:
        """The name of the axis that several make together, as ``Mesh`` gives it; "" where that is one rank."""
        return "+".join(name for name in AXES if name in names and self._sizes[name] > 1)

    def places(self) -> Iterator[Place]:
        """All ranks in order."""
        for rank in range(self.ranks):
            yield self.place(rank)

    def place(self, rank: int) -> Place:
        found = []
        for size in (self.tp, self.cp, self.dp, self.pp):
            rank, own = divmod(rank, size)
            found.append(own)
        return Place(*reversed(found))

    def rank(self, place: Place) -> int:
        return ((place.pp * self.dp + place.dp) * self.cp + place.cp) * self.tp + place.tp

    def line(self, axis: str, place: Place) -> tuple[int, ...]:
        """The global ranks that talk to the rank at ``place`` along ``axis``, itself included."""
        if axis in ("ep", "edp"):
            per_stage = self.dp * self.cp * self.tp
            start, own = divmod(self.rank(place), per_stage)
            block, member = divmod(own, self.ep)
            within = range(block * self.ep, (block + 1) * self.ep) if axis == "ep" else range(member, per_stage, self.ep)
            return tuple(start * per_stage + other for other in within)
        free = DENSE if axis == "world" else axis.split("+")
        along = [range(self._sizes[a]) if a in free else (own,) for a, own in zip(DENSE, place, strict=True)]
        return tuple(self.rank(Place(*each)) for each in product(*along))

    def rows_of(self, place: Place) -> list[int]:
        """Rows of each microbatch on this rank; what does not divide goes to the first."""
        return dealt(dealt(self.rows, self.dp)[place.dp], self.microbatches)

    def refusal(self) -> str | None:
        """Why this job cannot run, in a sentence; None if it can."""
        c = self.config
        bad = self._refused_numbers()
        if bad is not None:
            return bad
        over, per_stage = self.dp * self.microbatches, self.dp * self.cp * self.tp
        whole_experts = self.tp == 1 or self.ep > 1 or self.splits_sequence
        rules = [
            (self.rows < over, f"{self.rows} rows do not reach for dp {self.dp} x {self.microbatches} microbatches"),
            (c.heads < self.tp, f"{c.heads} heads cannot be split over tp {self.tp}"),
            (self.ep > 1 and not c.experts, f"ep {self.ep} splits experts, and this model has none"),
            (per_stage % self.ep, f"ep {self.ep} does not divide dp x cp x tp = {per_stage}"),
            (c.experts and c.experts < self.ep, f"{c.experts} experts cannot be split over ep {self.ep}"),
            (c.experts and not whole_experts and c.ffn % self.tp,
             f"experts of {c.ffn} hidden units do not divide over tp {self.tp}"),
            (self.splits_sequence and c.seq // self.cp % self.tp,
             f"{c.seq // self.cp} tokens do not divide over tp {self.tp}, as sequence parallelism wants"),
        ]  # fmt: skip
        return next((sentence for broken, sentence in rules if broken), None) or self._refused_inside()

    def refuse(self) -> None:
        """Raise ValueError, with the reason, if this job cannot run."""
        reason = self.refusal()
        if reason is not None:
            raise ValueError(reason)

    def _refused_numbers(self) -> str | None:
        """What is no number at all, or none that any job could have."""
        if not isinstance(self.config, GPTConfig):
            return f"a Job is a step of a GPTConfig, not of {self.config!r}"
        reasons = [not_whole(name, getattr(self, name)) for name in (*self.mesh, "microbatches", "rows", "number_bytes")]
        chunks = None if self.chunks is None else not_whole("chunks", self.chunks)
        reasons += [chunks, not_above_zero("bucket_bytes", self.bucket_bytes)]
        reasons += [not_one_of("schedule", self.schedule, NAMES), not_one_of("context", self.context, METHODS)]
        return next((reason for reason in reasons if reason), None)

    def _refused_inside(self) -> str | None:
        """What the techniques themselves refuse."""
        try:
            layout = TokenLayout.of(self.context, self.cp)
            if self.cp > 1:
                layout.refuse(self.config.seq)
                own = dealt(self.config.heads, self.tp)[-1]
                if own % layout.ulysses:
                    return f"Ulysses deals heads out: {own} do not divide over cp {self.cp}"
            stages = self.plan.stages if self.pp > 1 else 1
        except ValueError as error:
            return str(error).rstrip(".")
        most = self.config.layers + 2
        if stages > most:
            return f"{self.config.layers} layers, the embedding and the head are too few for {stages} stages"
        return None


def dealt(total: int, ranks: int) -> list[int]:
    """``total`` things dealt out: where they do not divide, the first ranks get one more."""
    return [total // ranks + (rank < total % ranks) for rank in range(ranks)]


@dataclass(frozen=True)
class Local:
    """The sizes that the matrices have on one rank."""

    job: Job
    place: Place

    @cached_property
    def heads(self) -> int:
        return dealt(self.job.config.heads, self.job.tp)[self.place.tp]

    @property
    def q_width(self) -> int:
        return self.heads * self.job.config.head_dim

    @property
    def whole_keys(self) -> bool:
        """Shared heads that do not divide: every rank keeps the whole key and value matrices."""
        c, tp = self.job.config, self.job.tp
        return c.kv_heads != c.heads and c.kv_heads % tp != 0

    @property
    def kv_heads(self) -> int:
        """Key-value heads that this rank computes with."""
        c = self.job.config
        if not self.whole_keys:
            return dealt(c.kv_heads, self.job.tp)[self.place.tp]
        first = sum(dealt(c.heads, self.job.tp)[: self.place.tp])
        needed = {head // (c.heads // c.kv_heads) for head in range(first, first + self.heads)}
        return 1 if len(needed) == 1 else self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.job.config.head_dim

    @property
    def kv_rows(self) -> int:
        """Rows of the key matrix that this rank holds."""
        c = self.job.config
        return c.kv_heads * c.head_dim if self.whole_keys else self.kv_width

    @property
    def ffn(self) -> int:
        return dealt(self.job.config.ffn, self.job.tp)[self.place.tp]

    @property
    def vocab(self) -> int:
        return dealt(self.job.config.vocab, self.job.tp)[self.place.tp]

    @property
    def cut_inside(self) -> bool:
        """Every expert cut over tp, instead of whole experts (see ``expert_parallel.parallel``)."""
        return self.job.tp > 1 and not self.job.splits_sequence and self.job.ep == 1

    @property
    def experts(self) -> int:
        if self.cut_inside:
            return self.job.config.experts
        members = self.job.line("ep", self.place) if self.job.ep > 1 else (self.job.rank(self.place),)
        return experts_by_rank(self.job.config.experts, self.job.ep)[members.index(self.job.rank(self.place))]

    @property
    def expert_ffn(self) -> int:
        return self.job.config.ffn // self.job.tp if self.cut_inside else self.job.config.ffn

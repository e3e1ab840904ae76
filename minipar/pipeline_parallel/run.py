"""Run a ``Schedule`` on real ranks: the very object that was drawn, checked and simulated.

Each rank goes through its lowered program. Sends and receives start where the program has them and finish beside the computation;
a rank waits for a message only when an action needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from minipar import comm, pacing
from minipar.data import Batch
from minipar.mesh import Mesh
from minipar.parameters import sync_gradients
from minipar.pipeline_parallel.action import Action, Transfer, makes
from minipar.pipeline_parallel.cut import layers_of, local_part, stage_layers, sum_tied, tied_across
from minipar.pipeline_parallel.mailbox import Mailbox, boundary
from minipar.pipeline_parallel.paced import Clock
from minipar.pipeline_parallel.schedule import Schedule
from minipar.pipeline_parallel.simulate import Cost, per_stage
from minipar.pipeline_parallel.stage import LossSum, Stage, matrix_elements
from minipar.trace import COMPUTE, Span, Timeline, now, tracer


class Gradients(Protocol):
    """Sends gradients off while the schedule still runs: ``minipar.data_parallel.Buckets``, or whoever does the same."""

    def start(self) -> None: ...

    def last_of(self, params: Iterable[nn.Parameter]) -> AbstractContextManager[None]: ...

    def finish(self) -> None: ...


PRODUCTS = {"F": 1, "I": 1, "W": 1, "B": 2}  # of a stage's matrices with its tokens, by kind of action


class Pipeline:
    """A model whose layers lie on the ranks of the ``pp`` axis, trained by a schedule. A layout for ``minipar.ledger.compare``.

    model: a ``GPT`` or an ``nn.Sequential``, whole, the same on every rank; ``self.model`` is what this rank keeps of it.
    sizes: how many layers each stage gets; left out, the largest stage gets as few matrix elements as possible.
    loss_sum: ``(scores, targets) -> loss summed over the targets that count``; left out, the last layer's own.
    seed: of all dropout masks; the same masks for every schedule and every cut.
    pace: seconds that an action lasts, by kind, one number or one for each stage: ``{"F": 0.02, "B": [0.04, 0.05]}``. Give each
    kind that the schedule has, and "comm" where a message between ranks takes time (one number, or one for each pair of neighbour
    stages); see ``paced``. Left out, actions last as long as they do, or as the rank's hardware model says.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule,
        mesh: Mesh,
        sizes: Sequence[int] | None = None,
        loss_sum: LossSum | None = None,
        seed: int = 0,
        pace: dict[str, Cost] | None = None,
    ) -> None:
        self.axis, self.mesh, self.schedule, self.seed = mesh["pp"], mesh, schedule, seed
        if schedule.ranks != self.axis.size:
            raise ValueError(f"this schedule is for {schedule.ranks} ranks, and axis pp has {self.axis.size}")
        schedule.validate()
        self.program = schedule.lower()[self.axis.rank]
        self.pace = _seconds(pace, schedule) if pace else {}
        self._hop = self.pace.pop("comm", [0.0] * (schedule.stages - 1))  # seconds of a message, by the stage in front of it
        layers = layers_of(model)
        elements = [matrix_elements(layer) for layer in layers]
        ranges = stage_layers(layers, schedule.stages, sizes, elements)
        self.costs = [sum(elements[i] for i in r) for r in ranges]  # by stage: matrix elements that each token is multiplied with
        pieces = [[layers[i] for i in r] for r in ranges]
        loss_sum = loss_sum or getattr(layers[-1], "loss_sum", None)
        if loss_sum is None:
            raise ValueError("this model's last layer has no loss_sum: pass loss_sum=, a function of (scores, targets)")
        self.stages = {
            s: Stage(s, pieces[s], ranges[s].start, schedule.split(s), loss_sum if s == schedule.stages - 1 else None)
            for s in schedule.stages_of(self.axis.rank)
        }
        self.complete = _completed(schedule.rows[self.axis.rank], self.stages)
        self.sizes = [len(r) for r in ranges]
        self.tied = tied_across(pieces, schedule.placement)
        self.model = local_part(model, [layer for s in self.stages for layer in pieces[s]])
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.mail = Mailbox(self.axis, self.device)
        self.mail.stamped = bool(self.pace)
        self.clock = Clock()
        self._made: dict[tuple[str, int, int], float] = {}  # when what is to be sent was made, on the modelled device
        self.steps = 0
        self.peak_activations = 0  # counted in the last step: microbatch-chunks held at once
        self._spans: list[Span] = []

    def step(self, batch: Batch) -> Tensor:
        """Forward and backward of the GLOBAL batch; gradients are synced. Returns the global mean loss, on every rank."""
        loss = self.accumulate(batch.rows_of(self.mesh["dp"]))
        self.sync()
        return comm.all_reduce(loss, self.mesh["pp", "dp", "cp"])

    def accumulate(self, batch: Batch, gradients: Gradients | None = None) -> Tensor:
        """Run the schedule on this rank's part of the batch, in as many microbatches as it has.

        Adds to ``grad`` of the local parameters. Returns this rank's share of the loss: zero but on the last stage. ``gradients``
        is told of each action that completes the gradients of a stage, and waited for at the end; then call no ``sync``.
        """
        parts = batch.to(self.device).parts(self.schedule.microbatches)
        loss = torch.zeros((), device=self.device, dtype=torch.float64)
        self.peak_activations = 0
        self.mail.arrived = 0.0
        if gradients is not None:
            gradients.start()
        with tracer.watch() as self._spans:
            for instruction in self.program:
                if not isinstance(instruction, Action):
                    self._transfer(instruction, parts[instruction.microbatch])
                elif gradients is None or instruction not in self.complete:
                    loss += self._act(instruction, parts[instruction.microbatch])
                else:
                    with tracer.during("backward"), gradients.last_of(self.complete[instruction]):
                        self._act(instruction, parts[instruction.microbatch])
            self.mail.settle()
        if gradients is not None:
            with tracer.during("backward"):
                gradients.finish()
                sum_tied(self.tied, self.axis)
        self.steps += 1
        return loss

    def sync(self) -> None:
        """Sum the gradients over batch and sequence, and those of a tied parameter over the stages that hold it."""
        with tracer.during("backward"):
            sync_gradients(self.model.parameters(), self.mesh)
            sum_tied(self.tied, self.axis)

    def expected(self) -> Timeline:
        """What is predicted for these stages: a forward, and each half of a backward, lasts as long as there is to multiply."""
        return self.schedule.simulate(self.costs, self.costs, self.costs)

    def timeline(self) -> Timeline:
        """The last step on all ranks of this pipeline, rank by its place in it; every rank must ask."""
        rows = comm.gather_objects(self._spans, self.axis)
        spans = [span._replace(rank=rank) for rank, row in enumerate(rows) for span in row]
        return Timeline(spans, self.axis.size, "paced" if self.pace or pacing.current() else "measured")

    def _transfer(self, message: Transfer, batch: Batch) -> None:
        shape = tuple(batch.inputs.shape)
        with tracer.during("forward" if message.what == "F" else "backward"):
            if message.way == "send":
                made = self._made.pop((message.what, message.stage, message.microbatch), 0.0)
                self.mail.send(message, shape, made + self._hop[boundary(message)])
            else:
                self.mail.expect(message, shape)

    def _act(self, action: Action, batch: Batch) -> Tensor | float:
        """Do one action. Returns the loss where one was computed."""
        kind, s, microbatch = action
        stage, last = self.stages[s], s == self.schedule.stages - 1
        if kind == "F":
            received = self.mail.take(("F", s - 1, microbatch)) if s else None
            with self._accounted(action, stage, batch):
                y = stage.forward(microbatch, batch, received, self._seeds())
            self.peak_activations = max(self.peak_activations, sum(other.in_flight for other in self.stages.values()))
            if last:
                return y.double()
            self.mail.put(("F", s, microbatch), y)
        elif kind == "W":
            with self._accounted(action, stage, batch):
                stage.weight_grad(microbatch)
        else:
            grad = None if last else self.mail.take(("B", s + 1, microbatch))
            self.mail.delivered(("F", s, microbatch))  # its gradient is here, so it has arrived
            with self._accounted(action, stage, batch):
                grad = (stage.backward if kind == "B" else stage.input_grad)(microbatch, grad)
            if grad is not None:
                self.mail.put(("B", s, microbatch), grad)
        return 0.0

    def _seeds(self) -> tuple[int, ...]:
        """What dropout masks depend on beside layer and microbatch: other tokens get other masks, in every step."""
        return self.seed, self.steps, self.mesh["dp"].rank, self.mesh["cp"].rank

    @contextmanager
    def _accounted(self, action: Action, stage: Stage, batch: Batch) -> Iterator[None]:
        """Trace an action, and let it last as long as it should."""
        with tracer.during("forward" if action.kind == "F" else "backward"):
            if self.pace:
                with self._paced(action):
                    yield
                return
            flops = 2.0 * PRODUCTS[action.kind] * stage.matrix_elements * batch.inputs.numel()
            with tracer.span(*action), pacing.compute(flops):
                yield

    @contextmanager
    def _paced(self, action: Action) -> Iterator[None]:
        start, began = self.clock.start(self.mail.arrived), now()
        yield
        end = self.clock.finish(start, self.pace[action.kind][action.stage], now() - began)
        tracer.add(action.kind, COMPUTE, start, end, stage=action.stage, microbatch=action.microbatch)
        made = makes(action)
        if made:
            self._made[made, action.stage, action.microbatch] = end


def _completed(row: Sequence[Action], stages: dict[int, Stage]) -> dict[Action, list[nn.Parameter]]:
    """The parameters whose gradients are complete when an action has ended: with their stage's last backward, or half of one.

    One that several stages of this rank share is complete with the last of them.
    """
    last = {action.stage: action for action in row if action.kind != "F"}
    found: dict[Action, list[nn.Parameter]] = {action: [] for action in row if action == last.get(action.stage)}
    home = {param: action for action in found for layer in stages[action.stage].layers for param in layer.parameters()}
    for param, action in home.items():
        found[action].append(param)
    return found


def _seconds(pace: dict[str, Cost], schedule: Schedule) -> dict[str, list[float]]:
    """``pace`` with a list for each kind. Raises ValueError for a kind that there is not, or one that is wanting."""
    numbers = dict.fromkeys(PRODUCTS, schedule.stages) | {"comm": schedule.stages - 1}
    unknown = pace.keys() - numbers.keys()
    if unknown:
        raise ValueError(f"pace: there is no {min(unknown)!r}; give the seconds of {', '.join(numbers)}")
    wanting = {action.kind for row in schedule.rows for action in row} - pace.keys()
    if wanting:
        raise ValueError(f"pace: this schedule has {', '.join(sorted(wanting))} as well; give the seconds of those too")
    return {kind: per_stage(cost, numbers[kind], f"pace[{kind!r}]") for kind, cost in pace.items()}


def actions_of(timeline: Timeline) -> Timeline:
    """The pipeline's actions alone: what a simulated timeline holds, to compare a measured one with it."""
    spans = [s for s in timeline.spans if s.lane == COMPUTE and s.name in PRODUCTS]
    return Timeline(spans, timeline.ranks, timeline.source)

"""Sum gradients while the backward pass still runs: a bucket is on its way as soon as its last gradient is there.

    backward     | layer 4 | layer 3 | layer 2 | layer 1 |
    all-reduce                       | bucket 0: 4, 3    | bucket 1: 2, 1    |

The backward pass finishes the last layers first, so the buckets are filled from the last layer to the first. Many small buckets pay
the latency of many calls; one big bucket starts when nothing is left to hide it behind. (PyTorch DDP, Li et al. 2020.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from minipar import comm
from minipar.choices import BUCKET_BYTES
from minipar.mesh import Axis, Mesh
from minipar.parameters import spec


class Bucket:
    """Gradients that travel together: one flat tensor, of which each parameter's gradient becomes a view."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.flat = torch.empty(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
        pieces = self.flat.split([p.numel() for p in params])
        self.views = {p: piece.view_as(p) for p, piece in zip(params, pieces, strict=True)}
        self.missing = set(params)

    def take(self, param: nn.Parameter) -> None:
        """Move the gradient of ``param`` into the bucket."""
        if param not in self.missing:
            raise RuntimeError("a gradient came twice for one parameter: only the last backward of a step goes into `gather`")
        view = self.views[param]
        if param.grad is None:
            view.zero_()  # this rank did not use the parameter; others may have
        elif param.grad.data_ptr() != view.data_ptr():
            view.copy_(param.grad)
        param.grad = view
        self.missing.remove(param)


class Queue:
    """The buckets of one axis and dtype. They leave in the same order on every rank, or sums would mix different gradients."""

    def __init__(self, params: dict[str, nn.Parameter], axis: Axis, bucket_bytes: float) -> None:
        self.params, self.axis, self.bucket_bytes = params, axis, bucket_bytes
        self.names = {p: name for name, p in params.items()}
        self.came: list[str] = []  # names, in the order in which the gradients of this step came
        self.pending: list[comm.Pending] = []
        _refuse_different_replicas(params, axis)
        self.fill(list(reversed(params)))

    def fill(self, order: list[str]) -> None:
        """Cut the parameters into buckets, in the order that the first rank proposes."""
        order = comm.gather_objects(order, self.axis)[0]
        self.buckets: list[Bucket] = []
        part: list[nn.Parameter] = []
        for name in order:
            part.append(self.params[name])
            if sum(p.numel() * p.element_size() for p in part) >= self.bucket_bytes or name == order[-1]:
                self.buckets.append(Bucket(part))
                part = []
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}

    def start(self) -> None:
        self.came = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.views)

    def arrived(self, param: nn.Parameter) -> None:
        """Take a gradient in; send what is full, unless a bucket before it is not."""
        self.came.append(self.names[param])
        self.bucket_of[param].take(param)
        while len(self.pending) < len(self.buckets) and not self.buckets[len(self.pending)].missing:
            self._send()

    def finish(self) -> None:
        """Send the buckets that parameters without a gradient held up, and wait for all."""
        while len(self.pending) < len(self.buckets):
            bucket = self.buckets[len(self.pending)]
            for param in tuple(bucket.missing):
                bucket.take(param)
            self._send()
        for pending in self.pending:
            pending.wait()
        self.pending = []

    def _send(self) -> None:
        self.pending.append(comm.async_all_reduce_(self.buckets[len(self.pending)].flat, self.axis))

    def follow_arrivals(self) -> None:
        """From now on fill the buckets in the order in which gradients came to the first rank; those that never came go last."""
        self.fill(self.came + [name for name in self.params if name not in set(self.came)])


class Buckets:
    """Sums the gradients of ``model`` over the axes that its parameters name.

    ``with buckets.gather(): loss.backward()`` leaves the sums in each ``param.grad``. Clear the gradients before every step. Of
    several microbatches, all but the last run their ``backward`` outside of ``gather``, which sends nothing. A parameter that no
    rank used gets a gradient of zeros. The order of modules may differ between ranks: all follow the first rank's, and after the
    first step the order in which its gradients came.

    A pipeline, whose ranks do other things between one stage's last gradients and the next one's, calls the three parts of
    ``gather`` itself: ``start()``, ``last_of(a stage's parameters)`` around that stage's last backward, ``finish()``.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, bucket_bytes: float = BUCKET_BYTES) -> None:
        groups: dict[tuple[tuple[str, ...], torch.dtype], dict[str, nn.Parameter]] = {}
        for name, param in model.named_parameters():
            if param.requires_grad and mesh[spec(param).sum_over].size > 1:
                groups.setdefault((spec(param).sum_over, param.dtype), {})[name] = param
        self.queues = [Queue(groups[key], mesh[key[0]], bucket_bytes) for key in sorted(groups, key=str)]
        self.queue_of = {param: queue for queue in self.queues for param in queue.names}
        self.closing: dict[nn.Parameter, None] = {}  # those whose last gradient of this step comes now, in order
        self.steps = 0
        for param in self.queue_of:
            param.register_post_accumulate_grad_hook(self._arrived)  # it is handed the parameter, not the gradient

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Sum over the ranks what the enclosed ``backward`` adds to the gradients, and what earlier ones left in them."""
        self.start()
        with self.last_of(self.queue_of):
            yield
        self.finish()

    def start(self) -> None:
        """Begin a step."""
        for queue in self.queues:
            if self.steps == 1:
                queue.follow_arrivals()
            queue.start()
        self.steps += 1

    @contextmanager
    def last_of(self, params: Iterable[nn.Parameter]) -> Iterator[None]:
        """The enclosed work makes the last gradients of ``params``: each leaves as it comes, those that do not come at the end."""
        self.closing = closing = dict.fromkeys(param for param in params if param in self.queue_of)
        try:
            yield
        finally:
            self.closing = {}
        for param in closing:
            if param in self.queue_of[param].bucket_of[param].missing:
                self.queue_of[param].arrived(param)

    def finish(self) -> None:
        """Wait until all gradients of this step are sums."""
        for queue in self.queues:
            queue.finish()

    def _arrived(self, param: nn.Parameter) -> None:
        if param in self.closing:
            self.queue_of[param].arrived(param)


def _refuse_different_replicas(params: dict[str, nn.Parameter], axis: Axis) -> None:
    own = {name: list(p.shape) for name, p in params.items()}
    for rank, theirs in zip(axis.ranks, comm.gather_objects(own, axis), strict=True):
        for name in sorted(own.keys() | theirs.keys()):
            if own.get(name) != theirs.get(name):
                here, there = own.get(name, "missing"), theirs.get(name, "missing")
                raise ValueError(
                    f"replicas need the same parameters, but {name} is {there} on rank {rank} and {here} on rank "
                    f"{axis.ranks[axis.rank]}"
                )

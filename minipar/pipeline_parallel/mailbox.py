"""Values on their way between stages: made here, sent, expected, arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from minipar import comm
from minipar.comm import Pending
from minipar.mesh import Axis
from minipar.pipeline_parallel.action import Transfer
from minipar.trace import tracer

Value = tuple[str, int, int]  # ("F" or "B", the stage that made it, microbatch)
Form = tuple[tuple[int, ...], torch.dtype]

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LARGEST = 8  # dimensions of a message
ON_THE_WAY = 4  # gradients being sent before the oldest is waited for


class Mailbox:
    """One rank's messages along ``axis``. Every message has memory of its own, which belongs to the transfer until it is done.

    A receiver must know the form of what comes. The first time that microbatches of some shape cross a boundary, the sender says
    it ahead (untraced: it is not the model's traffic); a gradient has the form of the activation that went the other way.
    """

    def __init__(self, axis: Axis, device: torch.device) -> None:
        self.axis, self.device = axis, device
        self.stamped = False  # whether each message says when it arrives: see ``paced``
        self.arrived = 0.0  # the stamp of the value taken last
        self._here: dict[Value, Tensor] = {}
        self._stamps: dict[Value, Pending] = {}
        self._expected: dict[Value, Pending] = {}
        self._leaving: dict[Value, Pending] = {}
        self._gradients: deque[Value] = deque()  # of _leaving, oldest first
        self._forms: dict[tuple[int, tuple[int, ...]], Form] = {}  # (stage in front of the boundary, microbatch shape)

    def remember(self, other: Mailbox) -> None:
        """Take over the forms that another mailbox between the same stages was told of: nobody waits to be told again."""
        self._forms |= other._forms

    def put(self, value: Value, x: Tensor) -> None:
        """Leave a value for a later ``send``, or for another stage of this rank."""
        self._here[value] = x

    def take(self, value: Value) -> Tensor:
        """The value, once it is there."""
        self.arrived = 0.0
        if value in self._here:
            return self._here.pop(value)
        x = self._expected.pop(value).wait()[0]
        if self.stamped:
            with _untraced():
                self.arrived = self._stamps.pop(value).wait()[0].item()
        return x

    def send(self, message: Transfer, shape: tuple[int, ...], arrives: float = 0.0) -> None:
        """Start to send a value that was ``put``. ``shape``: of the microbatch's input; ``arrives`` goes along as the stamp."""
        value = (message.what, message.stage, message.microbatch)
        x = self._here.pop(value)
        if (boundary(message), shape) not in self._forms:
            self._announce(message, shape, x)
        if not x.numel():
            return
        if self.stamped:
            stamp = torch.tensor([arrives], dtype=torch.float64, device=self.device)
            self._stamps[value] = comm.async_exchange([(stamp, message.peer)], [], self.axis)
        self._leaving[value] = comm.async_exchange([(x, message.peer)], [], self.axis)
        if message.what == "B":
            self._gradients.append(value)
            if len(self._gradients) > ON_THE_WAY:
                self.delivered(self._gradients.popleft())

    def expect(self, message: Transfer, shape: tuple[int, ...]) -> None:
        """Start to receive a value into new memory."""
        value = (message.what, message.stage, message.microbatch)
        if (boundary(message), shape) not in self._forms:
            self._listen(message, shape)
        sizes, dtype = self._forms[boundary(message), shape]
        x = torch.empty(sizes, dtype=dtype, device=self.device)
        if x.numel():
            if self.stamped:
                stamp = torch.empty(1, dtype=torch.float64, device=self.device)
                self._stamps[value] = comm.async_exchange([], [(stamp, message.peer)], self.axis)
            self._expected[value] = comm.async_exchange([], [(x, message.peer)], self.axis)
        else:
            self._here[value] = x

    def delivered(self, value: Value) -> None:
        """Let go of a value that was sent, once its transfer is done."""
        if value in self._leaving:
            self._leaving.pop(value).wait()
            if self.stamped:
                with _untraced():
                    self._stamps.pop(value).wait()

    def settle(self) -> None:
        """Wait until everything sent has left."""
        for value in list(self._leaving):
            self.delivered(value)
        self._gradients.clear()

    def _announce(self, message: Transfer, shape: tuple[int, ...], x: Tensor) -> None:
        if x.dtype not in DTYPES or x.dim() > LARGEST:
            raise TypeError(
                f"stage {message.stage} passes on a {x.dtype} tensor of {x.dim()} dimensions; a pipeline sends real numbers"
            )
        words = [DTYPES.index(x.dtype), x.dim(), *x.shape]
        with _untraced():
            comm.send(torch.tensor(words + [0] * (LARGEST + 2 - len(words)), device=self.device), message.peer, self.axis)
        self._forms[boundary(message), shape] = (tuple(x.shape), x.dtype)

    def _listen(self, message: Transfer, shape: tuple[int, ...]) -> None:
        with _untraced():
            dtype, dim, *sizes = comm.recv(
                torch.empty(LARGEST + 2, dtype=torch.int64, device=self.device), message.peer, self.axis
            ).tolist()
        self._forms[boundary(message), shape] = (tuple(sizes[:dim]), DTYPES[dtype])


def boundary(message: Transfer) -> int:
    """The stage in front of the boundary between two stages that a message crosses, one way or the other."""
    return message.stage if message.what == "F" else message.stage - 1


@contextmanager
def _untraced() -> Iterator[None]:
    before, tracer.enabled = tracer.enabled, False
    try:
        yield
    finally:
        tracer.enabled = before

"""What travels between the kernel and a rank: frames on a socket, and pickles that know tensors.

A frame is ``kind (1 byte), size of meta (4), size of body (8), meta, body``: ``meta`` is a small pickle, ``body`` raw bytes
(a pickled function or result), so that large bodies are never pickled twice.
"""

from __future__ import annotations

import io
import marshal
import pickle
import socket
import struct
import sys
from collections import deque
from types import BuiltinFunctionType, CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import cloudpickle

from course.ranks import functions, special

HEADER = struct.Struct("!BIQ")

# kernel to rank; RUN: meta (number, packed surroundings), body (function, arguments)
JOIN, LEAVE, RUN = 1, 2, 3
# rank to kernel; DONE: meta (number of the run, failure or None, tally or None, whether the process group is there), body result
READY, LEFT, EVENTS, DONE = 11, 12, 13, 14
# between the kernel and a rank's guard thread
ASK, ANSWER = 21, 22


class Frame(NamedTuple):
    kind: int
    meta: Any
    body: bytes


def pack(kind: int, meta: Any, body: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """The pieces of a frame, to be sent one after the other."""
    small = pickle.dumps(meta, protocol=5)
    head = HEADER.pack(kind, len(small), len(body)) + small
    return [b"".join((head, body))] if len(body) < 65536 else [head, body]


class Frames:
    """Takes bytes as they come and gives back whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: memoryview) -> list[Frame]:
        if self._buffer:
            self._buffer += data
            data = memoryview(self._buffer)
        frames, start, size = [], 0, len(data)
        while (meta := start + HEADER.size) <= size:
            kind, small, large = HEADER.unpack_from(data, start)
            body = meta + small
            end = body + large
            if end > size:
                break
            frames.append(Frame(kind, pickle.loads(data[meta:body]), bytes(data[body:end])))
            start = end
        if start or not self._buffer:  # else all of it still waits for its end
            self._buffer = bytearray(data[start:])
        return frames


def send(sock: socket.socket, kind: int, meta: Any, body: bytes | memoryview = b"") -> None:
    """Send a frame and block until it is on its way."""
    for piece in pack(kind, meta, body):
        sock.sendall(piece)


class Reader:
    """Takes frames from a socket that nobody else reads; a small one costs a single system call."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = Frames()
        self._memory = memoryview(bytearray(1 << 20))  # kept: new memory for every frame would cost more than reading it
        self._ready: deque[Frame] = deque()

    def receive(self) -> Frame:
        """Block until a whole frame is there. ``EOFError`` when the other side is gone."""
        while not self._ready:
            count = self._sock.recv_into(self._memory)
            if not count:
                raise EOFError("the other side closed the socket")
            self._ready += self._frames.feed(self._memory[:count])
        return self._ready.popleft()


_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_REBUILDERS = (functions.__name__, special.__name__, "cloudpickle.cloudpickle", "marshal")  # both sides have their functions


class _Pickler(cloudpickle.Pickler):
    """Functions and classes of a notebook go by value; tensors as their own bytes, on the CPU, detached.

    A view of a large tensor sends only what it shows.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self._shared = functions.Shared()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _FUNCTIONS) and obj.__module__ in _REBUILDERS:
            return NotImplemented
        if type(obj) is FunctionType and not functions.has_a_home(obj):
            return special.take_dispatcher_apart(obj) if special.dispatches(obj) else functions.take_apart(obj, self._shared)
        if type(obj) is CodeType and isinstance(code := self._shared.code(obj), bytes):
            return marshal.loads, (code,)
        if type(obj) is CellType:
            return functions.take_cell_apart(obj)
        if type(obj) is functions.Cached and not functions.has_a_home(obj):
            return functions.take_cached_apart(obj)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and _is_plain(torch, obj):
            made = _rebuild_tensor, _tensor_parts(torch, obj)
            return (*made, vars(obj), None, None, _give) if vars(obj) else made
        if (parts := special.take_apart(obj)) is not None:
            return parts
        parts = super().reducer_override(obj)
        return special.class_parts(obj, parts) if isinstance(parts, tuple) and isinstance(obj, type) else parts


def _is_plain(torch: Any, tensor: Any) -> bool:
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return known and tensor.layout == torch.strided and tensor.device.type != "meta" and not tensor.is_quantized


def _tensor_parts(torch: Any, tensor: Any) -> tuple[Any, ...]:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = pickle.PickleBuffer(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    return data, str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, type(tensor) is torch.nn.Parameter


def _rebuild_tensor(data: bytearray, dtype: str, shape: tuple[int, ...], requires_grad: bool, parameter: bool) -> Any:
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
    tensor = flat.reshape(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _give(tensor: Any, attributes: dict[str, Any]) -> None:
    """Those that a learner, or minipar, has given it: which part of a parameter it is."""
    vars(tensor).update(attributes)


_PLAIN = (type(None), bool, int, float, str, bytes)


def dumps(obj: Any) -> memoryview:
    if type(obj) in _PLAIN:
        return memoryview(pickle.dumps(obj, protocol=5))
    file = io.BytesIO()
    _Pickler(file).dump(obj)
    return file.getbuffer()


def loads(data: bytes | memoryview) -> Any:
    return pickle.loads(data)

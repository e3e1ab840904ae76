"""Sees every ``torch.distributed`` call of a rank: the one place where its functions are wrapped.

Each call is noted in the ledger (``calls``) and watched while it may block. A learner's own calls are traced here; those of
``minipar.comm`` are traced there already. Calls that torch makes inside its own functions belong to the outer one. DDP's
reducer, written in C++, is not seen.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from course.ranks.calls import COLLECTIVE, RECV, SEND, Call, Calls, user_line
from minipar import unwaited
from minipar.trace import COMM, tracer

_calls: Calls | None = None  # set once this process is a rank


Described = tuple[str, str, str, tuple[int, ...], str, str]  # see Calls.post


class Shape(NamedTuple):
    """How to read the arguments of one function."""

    data: str = ""  # the argument whose type and size must agree; "" if ranks may differ
    root: str = ""  # "src" or "dst", for the functions that have one
    objects: bool = False


Describe = Callable[[str, Shape, dict[str, Any]], Described | None]

_COLLECTIVES = {
    "all_reduce": Shape("tensor"),
    "broadcast": Shape("tensor", "src"),
    "reduce": Shape("tensor", "dst"),
    "all_gather": Shape("tensor"),
    "all_gather_into_tensor": Shape("input_tensor"),
    "all_gather_single": Shape("input_tensor"),
    "gather": Shape("tensor", "dst"),
    "scatter": Shape("tensor", "src"),
    "reduce_scatter": Shape("output"),
    "reduce_scatter_tensor": Shape("output"),
    "reduce_scatter_single": Shape("output"),
    "all_to_all": Shape(),
    "all_to_all_single": Shape(),
    "barrier": Shape(),
    "monitored_barrier": Shape(),
    "all_gather_object": Shape(objects=True),
    "gather_object": Shape("", "dst", objects=True),
    "broadcast_object_list": Shape("", "src", objects=True),
    "scatter_object_list": Shape("", "src", objects=True),
    "new_group": Shape(),
}
_MESSAGES = {
    "send": Shape("tensor", "dst"),
    "isend": Shape("tensor", "dst"),
    "recv": Shape("tensor", "src"),
    "irecv": Shape("tensor", "src"),
    "send_object_list": Shape("", "dst", objects=True),
    "recv_object_list": Shape("", "src", objects=True),
}


def install() -> None:
    """Wrap the functions, once per fork server and before anyone keeps a reference to the plain ones."""
    tables: list[tuple[dict[str, Shape], Describe]] = [(_COLLECTIVES, _collective), (_MESSAGES, _message)]
    for table, describe in tables:
        for name, shape in table.items():
            plain: Any = getattr(c10d, name, None)
            if plain is not None and not hasattr(plain, "_minipar"):
                seen = _wrap(name, plain, shape, describe)
                for home in (c10d, dist):
                    setattr(home, name, seen)
    plain_init = c10d.init_process_group
    if not hasattr(plain_init, "_minipar"):
        for home in (c10d, dist):
            setattr(home, "init_process_group", _refusing_second(plain_init))  # noqa: B010  # mypy: dist re-exports it


def attach(calls: Calls) -> None:
    """This process is a rank: write to its ledger from now on."""
    global _calls
    _calls = calls


def _wrap(name: str, plain: Callable[..., Any], shape: Shape, describe: Describe) -> Callable[..., Any]:
    names = list(inspect.signature(plain).parameters)

    @functools.wraps(plain)
    def seen(*args: Any, **kwargs: Any) -> Any:
        calls = _calls
        if calls is None or calls.depth.value:
            return plain(*args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        described = describe(name, shape, given)
        if described is None:  # not a member of the group: torch warns and returns
            return plain(*args, **kwargs)
        where, through_comm = user_line(sys._getframe(1))
        call = calls.post(described, where)
        start = tracer.clock()
        if given.get("async_op") or name in ("isend", "irecv"):
            if unwaited.kept:
                unwaited.make_room(_ways(call))
            with calls.unseen():
                work = plain(*args, **kwargs)
            calls.opened(call)
            return None if work is None else Work(work, calls, call, None if through_comm else start, _sent(call, given))
        with tracer.blocked(), calls.waiting(call), calls.unseen():
            result = plain(*args, **kwargs)
            end = tracer.clock()
        _passed(call)
        if not through_comm:
            _trace(call, start, end, _sent(call, given))
        return result

    seen._minipar = True  # type: ignore[attr-defined]
    return seen


class Work:
    """What an asynchronous call returned, with a ``wait`` that is watched, and traced unless ``started`` is None."""

    def __init__(self, work: Any, calls: Calls, call: Call, started: float | None, nbytes: float = 0) -> None:
        self._work, self._calls, self._call, self._started, self._nbytes = work, calls, call, started, nbytes

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        with tracer.blocked(), self._calls.waiting(self._call):
            done = self._work.wait(*args, **kwargs)
            end = tracer.clock()
        self._calls.closed(self._call)
        _passed(self._call)
        if self._started is not None:
            _trace(self._call, self._started, end, self._nbytes)
            self._started = None
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def __del__(self) -> None:
        call = self._call
        if self._started is not None and call.side != COLLECTIVE:  # minipar.comm keeps its own
            unwaited.keep(call.number, _ways(call), [Work(self._work, self._calls, call, None)])


def _ways(call: Call) -> unwaited.Ways:
    return frozenset([(call.channel, call.side, call.members)])


def _passed(call: Call) -> None:
    if unwaited.kept and call.side != COLLECTIVE and -1 not in call.members:  # those from any rank come in any order
        unwaited.passed(call.number, _ways(call))


def _group_name(group: Any) -> str | None:
    """None if this rank is not a member."""
    if group is None:
        group = dist.group.WORLD
    return None if group is dist.GroupMember.NON_GROUP_MEMBER or group is None else group.group_name


def _collective(name: str, shape: Shape, given: dict[str, Any]) -> Described | None:
    group = None if name == "new_group" else given.get("group")
    channel = _group_name(group)
    if channel is None or given.get("use_local_synchronization"):
        return None
    members = tuple(dist.get_process_group_ranks(group))
    data = given.get(shape.data) if shape.data else None
    extras = _extras(name, shape, given, group, members)
    agree, signature = [name, *extras], extras
    if isinstance(data, torch.Tensor):
        agree = [name, str(data.dtype), str(data.numel()), *extras]
        signature = [_signature(data), *extras]
    return name, channel, COLLECTIVE, members, "|".join(agree), ", ".join(signature)


def _extras(name: str, shape: Shape, given: dict[str, Any], group: Any, members: tuple[int, ...]) -> list[str]:
    """What has to agree besides the tensor: the reduction, the root."""
    extras = ["objects"] if shape.objects else []
    if "reduce" in name:
        extras.append(_reduction(given.get("op")))
    if shape.root:
        extras.append(f"{'from' if shape.root == 'src' else 'to'} rank {_peer(shape.root, given, group)}")
    if name == "new_group":
        extras.append(f"ranks {list(given.get('ranks') or members)}")
    return extras


def _message(name: str, shape: Shape, given: dict[str, Any]) -> Described | None:
    group = given.get("group")
    channel = _group_name(group)
    if channel is None:
        return None
    me, peer = dist.get_rank(), _peer(shape.root, given, group)
    sending = shape.root == "dst"
    data = given.get(shape.data)
    signature = _signature(data) if isinstance(data, torch.Tensor) else "objects"
    agree = f"{data.dtype}|{data.numel()}" if isinstance(data, torch.Tensor) else "objects"
    members = (me, peer) if sending else (peer, me)
    told = f"{signature}, {'to' if sending else 'from'} {f'rank {peer}' if peer >= 0 else 'any rank'}"
    return name, f"{channel}:{given.get('tag', 0)}", SEND if sending else RECV, members, agree, told


def _peer(role: str, given: dict[str, Any], group: Any) -> int:
    """The global rank at the other end; -1 for any."""
    within = given.get(f"group_{role}")
    if within is not None:
        return dist.get_global_rank(dist.group.WORLD if group is None else group, within)  # type: ignore[arg-type]
    peer = given.get(role)
    if peer is None:
        return -1 if role == "src" else 0
    return int(peer)


def _reduction(op: Any) -> str:
    return str(getattr(op, "name", op)).rpartition(".")[2].lower() if op is not None else "sum"


def _signature(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _sent(call: Call, given: dict[str, Any]) -> float:
    """Bytes that this rank puts on the wire, by the closed form of a bandwidth-optimal algorithm."""
    n, me = len(call.members), dist.get_rank()
    if call.side != COLLECTIVE:
        return _nbytes(given.get("tensor")) if call.side == SEND else 0
    share = (n - 1) / n
    match call.op:
        case "all_reduce":
            return 2 * share * _nbytes(given.get("tensor"))
        case "broadcast" | "reduce":
            return share * _nbytes(given.get("tensor"))
        case "all_gather":
            return share * sum(map(_nbytes, given.get("tensor_list") or ()))
        case "all_gather_into_tensor" | "all_gather_single":
            return share * _nbytes(given.get("output_tensor"))
        case "reduce_scatter" | "reduce_scatter_tensor" | "reduce_scatter_single":
            return (n - 1) * _nbytes(given.get("output"))
        case "gather":
            return 0 if given.get("gather_list") else _nbytes(given.get("tensor"))
        case "scatter":
            pieces = given.get("scatter_list") or ()
            return sum(map(_nbytes, pieces)) * share
        case "all_to_all":
            pieces = given.get("input_tensor_list") or ()
            return sum(_nbytes(piece) for i, piece in enumerate(pieces) if call.members[i] != me)
        case "all_to_all_single":
            return _rows_leaving(given, call.members.index(me), n)
    return 0


def _rows_leaving(given: dict[str, Any], place: int, n: int) -> float:
    x = given["input"]
    splits = given.get("input_split_sizes")
    if not splits:
        return _nbytes(x) * (n - 1) / n
    rows = x.shape[0] or 1
    return _nbytes(x) / rows * (sum(splits) - splits[place])


def _nbytes(x: Any) -> float:
    return x.numel() * x.element_size() if isinstance(x, torch.Tensor) else 0


def _trace(call: Call, start: float, end: float, nbytes: float) -> None:
    if call.op == "new_group":
        return  # watched, since ranks wait for each other in it; but it moves nothing of the learner's
    me = dist.get_rank()
    peers = tuple(rank for rank in call.members if rank not in (me, -1))
    name = {"isend": "send", "irecv": "recv"}.get(call.op, call.op)
    tracer.add(name, COMM, start, end, "world" if call.side == COLLECTIVE else "", nbytes, peers)


def _refusing_second(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group``, which a rank has no need to call."""

    @functools.wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if _calls is not None and dist.is_initialized():
            raise RuntimeError("the process group is ready before your function starts: leave init_process_group out")
        return plain(*args, **kwargs)

    init_process_group._minipar = True  # type: ignore[attr-defined]
    return init_process_group

"""Every byte that goes from one rank to another goes through here.

``comm.all_reduce(x, axis)`` and its siblings move plain data; ``comm.twins`` holds the same operations for tensors under autograd.
Each call is traced (``minipar.trace``), counted in bytes, and takes its modelled time where the rank is paced.
"""

from minipar.comm import twins
from minipar.comm.calls import (
    all_gather,
    all_reduce,
    all_reduce_,
    all_to_all,
    async_all_gather,
    async_all_reduce_,
    async_all_to_all,
    async_reduce_scatter,
    barrier,
    broadcast,
    broadcast_,
    gather_objects,
    reduce_scatter,
)
from minipar.comm.kinds import KindError, strict
from minipar.comm.messages import async_exchange, exchange, recv, send
from minipar.comm.pending import Monitor, Pending, set_monitor, wire_bytes
from minipar.mesh import world
from minipar.pacing import pace

__all__ = [
    "KindError",
    "Monitor",
    "Pending",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "async_all_gather",
    "async_all_reduce_",
    "async_all_to_all",
    "async_exchange",
    "async_reduce_scatter",
    "barrier",
    "broadcast",
    "broadcast_",
    "exchange",
    "gather_objects",
    "pace",
    "recv",
    "reduce_scatter",
    "send",
    "set_monitor",
    "strict",
    "twins",
    "wire_bytes",
    "world",
]

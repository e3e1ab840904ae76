"""Is there memory enough for a run? Asked before anything is built: the planner's bytes against those that are free.

Ranks on the CPU share the memory of their machine; those on GPUs share it with whoever has the same GPU.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch

from minipar import comm
from minipar.checks import RefusedError
from minipar.mesh import world
from minipar.planner.job_memory import live_memory
from minipar.report import job_of

GB = 1e9
CGROUP = Path("/sys/fs/cgroup")


def refuse_too_large(options: argparse.Namespace, device: torch.device) -> None:
    """Every rank must ask; all raise RefusedError if any of them would not find room."""
    job = job_of(options)
    if job.refusal() is not None:
        return  # the techniques say it better
    batch = 2 * job.tokens * 8  # inputs and targets, whole on every rank
    needs = [live_memory(job, job.place(rank), options.optimizer).total + batch for rank in _neighbours(device)]
    free = free_bytes(device) if options.memory_gb is None else options.memory_gb * GB
    for rank, (wanted, there) in enumerate(comm.gather_objects((needs, free))):
        if sum(wanted) > there:
            who = "this run" if len(wanted) == job.ranks else f"the {len(wanted)} ranks that share a memory with rank {rank}"
            raise RefusedError(
                f"{who} would hold {sum(wanted) / GB:,.2f} GB of tensors "
                f"(predicted), up to {max(wanted) / GB:,.2f} GB each, and {there / GB:,.2f} GB are free: take fewer --rows or more "
                f"--microbatches, or say with --memory-gb how much there is"
            )


def _neighbours(device: torch.device) -> list[int]:
    """The global ranks that share this rank's memory, itself included. Without a launcher's word, all are on one machine."""
    axis = world()
    local, size = int(os.environ.get("LOCAL_RANK", axis.rank)), int(os.environ.get("LOCAL_WORLD_SIZE", axis.size))
    ranks = range(axis.rank - local, axis.rank - local + size)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 1
    return [rank for rank in ranks if (rank - axis.rank) % gpus == 0]


def free_bytes(device: torch.device) -> float:
    """Bytes that could still be taken: of a GPU, or of this machine (of its container, if that allows less)."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return min(_machine(), _container())


def _machine() -> float:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # no Linux: all that is built in
        names = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
        return float(math.prod(map(os.sysconf, names))) if set(names) <= set(getattr(os, "sysconf_names", ())) else math.inf


def _container() -> float:
    """The limit of a control group (version 2), less what cannot be given back."""
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        lines = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return math.inf if limit == "max" else float(int(limit) - int(used) + int(lines.get("inactive_file", 0)))
    except (OSError, ValueError):
        return math.inf

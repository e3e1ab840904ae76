"""``minipar doctor``: what this machine has, how ranks will run on it, and what to do about each problem.

Every check *tries* what the lessons need (it forks, it connects over loopback, it writes a file, it starts real ranks)
and returns findings; a finding that says "no" means that something will not work, and the exit code is then 1.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from course.browser import CHROMIUM_VARIABLE, can_show_a_browser, find_chromium
from course.lab import root

GIB = 2**30
MIB = 2**20
RANK_BYTES = 350 * MIB  # resident bytes that a rank adds in the lessons, with its share of the model
SHM_BYTES = 64 * MIB
OPEN_FILES = 256
PACKAGES = ("torch", "numpy", "jupyterlab", "ipykernel", "ipywidgets", "anywidget", "plotly", "matplotlib", "cloudpickle")


class Finding(NamedTuple):
    """One line of the report. ``verdict`` is "ok", "note" (works, but know this) or "no" (will not work)."""

    verdict: str
    subject: str
    fact: str
    advice: str = ""


def main(ranks: int = 4) -> int:
    """Print the report for ``ranks`` ranks; 1 if something will not work, else 0."""
    with contextlib.suppress(Exception):  # what keeps it from starting is told by the last check
        from course.ranks import server

        server.fork_server()  # loads torch while this process does
    findings = []
    for finding in examine(ranks):
        print(_line(finding), flush=True)
        findings.append(finding)
    broken = [f.subject for f in findings if f.verdict == "no"]
    print(f"\nWill not work: {', '.join(broken)}." if broken else "\nEverything the lessons need works here.")
    return 1 if broken else 0


def examine(ranks: int) -> Iterator[Finding]:
    """All findings, one check after another. A check that itself breaks is a finding too."""
    for check in CHECKS:
        yield from _guarded(check, ranks)


def _guarded(check: Callable[[int], Iterator[Finding]], ranks: int) -> Iterator[Finding]:
    try:
        yield from check(ranks)
    except Exception as error:  # whatever is wrong with a machine must not hide the rest of the report
        name = check.__name__.replace("_", " ")
        yield Finding("no", name, f"the check failed: {type(error).__name__}: {error}", "run `make clean` and `make setup` again")


def python(ranks: int) -> Iterator[Finding]:
    fact = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    yield Finding("ok" if sys.version_info >= (3, 11) else "no", "python", fact, "minipar needs Python 3.11 or newer")


def versions(ranks: int) -> Iterator[Finding]:
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    yield Finding("ok", "versions", ", ".join(f"{name} {version}" for name, version in found.items()))
    tested = pins(root() / "constraints.txt")
    other = [f"{name} {v} (tested: {tested[name]})" for name, v in found.items() if name in tested and _plain(v) != tested[name]]
    if other:
        yield Finding("note", "versions", "not the tested ones: " + ", ".join(other), "`make setup` installs the tested ones")


def _plain(version: str) -> str:
    return version.split("+")[0]  # "2.13.0+cpu" is 2.13.0


def pins(path: Path) -> dict[str, str]:
    """``{name in lower case: version}`` of a constraints file; empty where there is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    split = [line.strip().split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {name.lower(): version for name, version in split}


def devices(ranks: int) -> Iterator[Finding]:
    import torch

    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    listed = ", ".join(f"{gpu.name} ({gpu.total_memory / GIB:.0f} GiB)" for gpu in gpus)
    yield Finding("ok", "devices", listed or f"no GPU; CPU: {platform.processor() or platform.machine()}")
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    yield Finding("ok", "ranks", how_ranks_run(ranks, len(gpus), nccl))
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        yield Finding("no", "gloo", "this torch has no gloo backend", "install the torch of constraints.txt: `make setup`")


def how_ranks_run(ranks: int, gpus: int, nccl: bool = True) -> str:
    """In words, what ``ranks`` ranks run on where there are ``gpus`` GPUs, and what their seconds are called."""
    if gpus >= ranks and nccl:
        return f"{ranks} ranks on {gpus} GPUs: one GPU each, NCCL; seconds are measured"
    if gpus:
        return f"{ranks} ranks share {gpus} GPU{'s' * (gpus > 1)}: gloo through the host; seconds are measured, ranks share a GPU"
    return f"{ranks} ranks on the CPU, gloo; seconds are measured on CPU, or paced as modelled hardware (hardware=...)"


def cores(ranks: int) -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if usable >= ranks:
        yield Finding("ok", "cores", f"{usable} for {ranks} ranks")
    else:
        advice = "counts stay exact; for seconds that mean something run the ranks paced: Ranks(4, hardware=...)"
        yield Finding("note", "cores", f"{usable} for {ranks} ranks: ranks take turns, measured seconds include waiting", advice)


def memory(ranks: int) -> Iterator[Finding]:
    free, need = available_memory(), ranks * RANK_BYTES
    fact = f"{free / GIB:.1f} GiB free, {need / GIB:.1f} GiB for {ranks} ranks"
    yield Finding("ok" if free > need else "no", "memory", fact, "close other kernels and programs, or start fewer ranks")


def available_memory() -> int:
    """Bytes that new processes may take: the machine's, or what a container leaves of its limit."""
    free = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return free


def shared_memory(ranks: int, folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    if not folder.exists():
        yield Finding("ok", "shared memory", f"no {folder} on {platform.system()}: the system's own is used")
        return
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK)
    verdict = "no" if not writable else "ok" if free >= SHM_BYTES else "note"
    fact = f"{folder}: {free / MIB:.0f} MiB free" if writable else f"{folder} cannot be written"
    yield Finding(verdict, "shared memory", fact, "in a container, start it with --shm-size=1g; else remove left-over files there")


def fork(ranks: int) -> Iterator[Finding]:
    advice = "ranks are forked from a warm server: use Linux or macOS; on Windows, use WSL 2"
    if not hasattr(os, "fork"):
        yield Finding("no", "fork", f"{platform.system()} has no fork", advice)
        return
    child = os.fork()
    if child == 0:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    yield Finding("ok" if status == 0 else "no", "fork", "processes can be forked", advice)


def loopback(ranks: int) -> Iterator[Finding]:
    advice = "ranks and JupyterLab talk over 127.0.0.1: bring the interface up (`ip link set lo up`) or loosen the firewall"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(2)
            with socket.create_connection(server.getsockname(), timeout=2) as client:
                peer, _ = server.accept()
                with peer:
                    client.sendall(b"?")
                    answered = peer.recv(1) == b"?"
    except OSError as error:
        yield Finding("no", "loopback", f"127.0.0.1 cannot be reached: {error}", advice)
        return
    yield Finding("ok" if answered else "no", "loopback", "127.0.0.1 answers", advice)


def open_files(ranks: int) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = max(OPEN_FILES, 32 * ranks)
    enough = soft == resource.RLIM_INFINITY or soft >= need
    yield Finding("ok" if enough else "no", "open files", f"{soft} allowed, {need} needed", f"run `ulimit -n {4 * need}` first")


def writing(ranks: int) -> Iterator[Finding]:
    from jupyter_core.paths import jupyter_runtime_dir

    for name, folder in {"scratch files": tempfile.gettempdir(), "Jupyter's run files": jupyter_runtime_dir()}.items():
        yield _writable(name, Path(folder), "no", f"{folder} must be writable: check its owner and that the disk is not full")
    notebooks = root() / "notebooks"
    yield _writable("notebooks", notebooks, "note", "lessons run but cannot be saved: clone the repository to a folder of your own")


def _writable(name: str, folder: Path, otherwise: str, advice: str) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except OSError as error:
        return Finding(otherwise, name, f"{folder}: {error.strerror}", advice)
    return Finding("ok", name, f"{folder} can be written")


def kernel(ranks: int) -> Iterator[Finding]:
    from jupyter_client.kernelspec import KernelSpecManager

    program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    same = os.path.basename(program) == program or Path(program).parent == Path(sys.executable).parent
    advice = f"another 'python3' kernel hides this one: `{sys.executable} -m ipykernel install --sys-prefix`, or remove it"
    yield Finding("ok" if same else "no", "kernel", f"notebooks run on {sys.executable if same else program}", advice)


def browsers(ranks: int) -> Iterator[Finding]:
    if can_show_a_browser():
        yield Finding("ok", "browser", "opens by itself")
    else:
        advice = "`minipar lab` prints a URL; from another machine: ssh -L 8888:127.0.0.1:8888 THIS-MACHINE"
        yield Finding("note", "browser", "none can be opened from here", advice)
    chromium = find_chromium()
    advice = f"only `make test` needs one: install chromium, or name one in {CHROMIUM_VARIABLE}"
    yield Finding("ok" if chromium else "note", "chromium", chromium or "none: browser tests are skipped", advice)


def real_ranks(ranks: int) -> Iterator[Finding]:
    from course import Ranks

    advice = "read the error above it; `minipar clean` ends ranks of earlier crashes"
    with Ranks(ranks) as pool:
        sums = pool.run(_sum_of_ranks, timeout=60)
    right = sums == [ranks * (ranks - 1) // 2] * ranks
    yield Finding("ok" if right else "no", "all-reduce", f"{ranks} real ranks started and agreed on {sums[0]}", advice)


def _sum_of_ranks() -> int:
    import torch
    import torch.distributed as dist

    from course.ranks import device
    from minipar import Mesh, comm

    mine = torch.tensor([dist.get_rank()], device=device())
    return int(comm.all_reduce(mine, Mesh(dp=dist.get_world_size()).world))


CHECKS: tuple[Callable[[int], Iterator[Finding]], ...] = (
    *(python, versions, devices, cores, memory, shared_memory, fork),
    *(loopback, open_files, writing, kernel, browsers, real_ranks),
)


def _line(finding: Finding) -> str:
    mark = {"ok": "ok  ", "note": "note", "no": "NO  "}[finding.verdict]
    text = _wrapped(finding.fact, f"{mark} {finding.subject:<20} ")
    return text if finding.verdict == "ok" or not finding.advice else text + "\n" + _wrapped(finding.advice, " " * 26 + "-> ")


def _wrapped(text: str, lead: str) -> str:
    return textwrap.fill(text, 118, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False)

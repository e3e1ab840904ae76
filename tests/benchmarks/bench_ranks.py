"""How fast ranks start, answer, stream and recover: ``python tests/benchmarks/bench_ranks.py``. Measured on CPU.

Compared with an ipyparallel cluster of as many engines, where that is installed (``pip install ipyparallel``).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from course import Ranks
from course.ranks import RankDied, RanksStuck
from minipar.trace import COMPUTE, tracer

N = 4
ROUNDS = 15


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_of(work: Callable[[], Any], times: int) -> float:
    return statistics.median(seconds(work) for _ in range(times))


def row(what: str, value: str, reach: str) -> None:
    print(f"{what:<58} {value:>16}   {reach}", flush=True)


def _nothing() -> None:
    return None


def _usual() -> None:
    """It names what a notebook's function names: torch, ``dist``, another function."""
    torch.set_num_threads(1) if dist.get_rank() < 0 else _nothing()


def _many_spans(count: int) -> None:
    for i in range(count):
        tracer.add("F", COMPUTE, i, i + 1, microbatch=i)


def _step(on: bool, steps: int) -> float:
    """Median seconds of a small training step with a traced call in it."""
    tracer.enabled = on
    layer = torch.nn.Linear(512, 512)
    x = torch.randn(64, 512)
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        with tracer.span("F"):
            loss = layer(x).square().mean()
        with tracer.span("B"):
            loss.backward()
        dist.all_reduce(layer.weight.grad)
        taken.append(time.perf_counter() - start)
    tracer.enabled = True
    return statistics.median(taken)


def starting() -> tuple[Ranks, float]:
    kept: list[Ranks] = []
    first = seconds(lambda: kept.append(Ranks(N)))
    again = []
    for _ in range(10):
        pool: list[Ranks] = []
        again.append(seconds(lambda pool=pool: pool.append(Ranks(N))))
        pool[0].close()
    row(f"Ranks({N}) ready, first in this process", f"{first:.2f} s", "<= 5 s")
    row(f"Ranks({N}) ready again, median (max) of 10", f"{statistics.median(again):.3f} ({max(again):.3f}) s", "<= 0.2 s")
    return kept[0], statistics.median(again)


def answering(ranks: Ranks) -> None:
    taken: dict[Callable[[], None], list[float]] = {_nothing: [], _usual: []}
    for _ in range(ROUNDS):  # in turns: half a second of a busy machine does not decide
        for work, times in taken.items():
            times += [seconds(partial(ranks.run, work)) for _ in range(200)]
    row(f"round trip to {N} ranks, median (p95)", _median_and_p95(taken[_nothing]), "<= 0.6 ms")
    row("the same for a function that names torch", _median_and_p95(taken[_usual]), "")
    large = torch.zeros(25_000_000)
    row("results of 100 MB from each of 2 ranks", f"{_large(large):.2f} s", "")


def _median_and_p95(taken: list[float]) -> str:
    twentieths = statistics.quantiles(taken, n=20)
    return f"{twentieths[9] * 1e3:.2f} ({twentieths[18] * 1e3:.2f}) ms"


def _large(x: torch.Tensor) -> float:
    with Ranks(2) as two:
        two.run(_nothing)
        return seconds(lambda: two.run(torch.zeros_like, x))


def streaming(ranks: Ranks) -> None:
    count = 200_000
    taken = seconds(lambda: ranks.run(_many_spans, count // N))
    run = ranks.last_run
    assert run is not None
    spans = run.timeline.spans
    lost = count - len({(s.rank, s.microbatch) for s in spans})
    row(f"{count:,} spans from {N} ranks", f"{taken:.2f} s", f"{lost} lost")


def tracing(ranks: Ranks) -> None:
    on, off = [], []
    for _ in range(8):
        on += ranks.run(_step, True, 100)
        off += ranks.run(_step, False, 100)
    ratio = statistics.median(on) / statistics.median(off)
    row("small training step, traced against not (alternating)", f"{100 * (ratio - 1):+.1f} %", "<= 3 %")


def recovering(ranks: Ranks) -> None:
    def die() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        dist.barrier()

    def skip() -> None:
        if dist.get_rank() != 1:
            dist.barrier()

    def expect(error: type[Exception], work: Callable[[], None]) -> None:
        try:
            ranks.run(work)
        except error:
            return
        raise AssertionError(f"no {error.__name__}")

    def stop(work: Callable[..., Any], *args: Any) -> float:
        run = ranks.start(work, *args)
        time.sleep(0.3)
        return seconds(run.stop)

    def half() -> None:
        while dist.get_rank() == 0:
            pass
        dist.barrier()

    died = max(seconds(lambda: expect(RankDied, die)) for _ in range(3))
    row("RankDied, from the call to idle ranks, max of 3", f"{died:.2f} s", "<= 1 s")
    stuck = max(seconds(lambda: expect(RanksStuck, skip)) for _ in range(3))
    row("RanksStuck, from the call to idle ranks, max of 3", f"{stuck:.2f} s", "<= 3 s")
    row("Stop of Python code, max of 3", f"{max(stop(time.sleep, 60) for _ in range(3)):.2f} s", "<= 2 s")
    row("Stop of blocked calls, max of 3", f"{max(stop(half) for _ in range(3)):.2f} s", "<= 2 s")


def against_ipyparallel(again: float, ranks: Ranks) -> None:
    try:
        import ipyparallel as ipp
    except ImportError:
        return row("ipyparallel", "not installed", "")
    kept: list[Any] = []

    def start() -> None:
        cluster = ipp.Cluster(n=N, log_level=40)
        view = cluster.start_and_connect_sync(activate=False)[:]
        view.block = True
        view.execute("import torch, torch.distributed")
        kept.append((cluster, view))

    def restart() -> None:
        cluster, _ = kept.pop()
        cluster.stop_cluster_sync()
        start()

    first = seconds(start)
    theirs = seconds(restart)
    row(f"ipyparallel, {N} engines with torch imported: first / again", f"{first:.1f} / {theirs:.1f} s", "")
    row("again: ipyparallel / Ranks", f"{theirs / again:.0f} x", ">= 50 x")
    cluster, view = kept[0]
    theirs = median_of(lambda: view.apply_sync(_nothing), 50)
    ours = median_of(lambda: ranks.run(_nothing), 50)
    row("round trip: ipyparallel / Ranks", f"{theirs / ours:.0f} x", "")
    cluster.stop_cluster_sync()


def main() -> None:
    load = os.getloadavg()[0]
    print(f"measured on CPU, {os.cpu_count()} cores, load average {load:.1f} before the start, torch {torch.__version__}\n")
    ranks, again = starting()
    answering(ranks)
    streaming(ranks)
    tracing(ranks)
    recovering(ranks)
    against_ipyparallel(again, ranks)
    ranks.close()


if __name__ == "__main__":
    main()

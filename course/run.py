"""``minipar run``: train on ranks of this machine, with a progress bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from course.ranks import Event, RankDied, RankError, Ranks, RanksInterrupted, RanksStuck, Run, device, emit
from course.ranks.server import fork_server
from minipar.checks import RefusedError
from minipar.options import complete, parser, refuse_unwritable
from minipar.unfinished import sweep


def main(argv: Sequence[str] | None = None) -> int:
    """0: trained. 1: a rank failed. 2: refused, and a sentence said why. 130: interrupted."""
    words = parser("minipar run")
    words.add_argument("--ranks", type=int, default=4, help="processes to start (default 4)")
    words.add_argument("--hardware", help="pace the communication as on this hardware, such as laptop-wifi or a100-nvlink")
    try:
        options = words.parse_args(argv)
        fork_server()  # loads torch while this process does
        complete(options, options.ranks)
        refuse_unwritable(options)
        pool = Ranks(options.ranks, hardware=options.hardware)
    except (TypeError, ValueError) as e:
        return _say(e, 2)
    try:
        with pool:
            print(f"{pool.n} ranks, {pool.describe()}")
            return _train(pool, options)
    except (RanksInterrupted, KeyboardInterrupt):
        return 130
    finally:
        if options.save is not None:
            sweep(options.save)  # no rank is left that could be writing


def _train(pool: Ranks, options: argparse.Namespace) -> int:
    from minipar.report import write

    try:
        run = pool.start(rank_main, options)
        report = watch(run, options.steps)
        write(options, report, run.timeline)
    except RefusedError as e:
        return _say(e, 2)
    except (RankError, RankDied, RanksStuck) as e:
        refused = getattr(e, "original", None)
        if isinstance(refused, RefusedError):
            return _say(refused, 2)
        return _say("\n".join((e.headline, *e.story)), 1)  # there is no next run
    return 0


def _say(why: object, code: int) -> int:
    print(f"minipar run: {why}", file=sys.stderr)
    return code


def rank_main(options: argparse.Namespace) -> dict[str, Any]:
    """What each rank runs; the first one tells the loss of every step."""
    from minipar.trace import tracer
    from minipar.train import train

    def tell(step: int, loss: float) -> None:
        if tracer.rank == 0:
            emit("step", (step, loss))

    return train(options, device(), tell)


def watch(run: Run, steps: int) -> dict[str, Any]:
    """Draw the bar until the run ends; returns the report."""
    steps_done: SimpleQueue[tuple[int, float]] = SimpleQueue()

    def hear(events: list[Event]) -> None:
        for event in events:
            if event.kind == "step":
                steps_done.put(event.payload)

    run.subscribe(hear)
    bar: tqdm | None = None
    try:
        ended = False
        while not ended:
            ended = run.wait(0.1)
            while not steps_done.empty():
                step, loss = steps_done.get()
                bar = bar or tqdm(total=steps, initial=step, unit="step", dynamic_ncols=True)  # a resumed run begins further on
                bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                bar.update()
    finally:
        if bar is not None:
            bar.close()
    return run.result()[0]

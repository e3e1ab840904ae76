"""``minipar run``: train on ranks of this machine, with a progress bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from course.ranks import Event, RankDied, RankError, Ranks, RanksInterrupted, RanksStuck, Run, device, emit
from minipar import train


def main(argv: Sequence[str] | None = None) -> int:
    """0: trained. 1: a rank failed. 2: refused, and a sentence said why. 130: interrupted."""
    parser = train.parser("minipar run")
    parser.add_argument("--ranks", type=int, default=4, help="processes to start (default 4)")
    parser.add_argument("--hardware", help="pace the communication as on this hardware, such as laptop-wifi or a100-nvlink")
    options = parser.parse_args(argv)
    try:
        train.complete(options, options.ranks)
        pool = Ranks(options.ranks, hardware=options.hardware)
    except (TypeError, ValueError) as e:
        print(f"minipar run: {e}", file=sys.stderr)
        return 2
    with pool:
        print(f"{pool.n} ranks, {pool.describe()}")
        try:
            run = pool.start(rank_main, options)
            report = watch(run, options.steps)
        except (RanksInterrupted, KeyboardInterrupt):
            return 130
        except (RankError, RankDied, RanksStuck) as e:
            refused = getattr(e, "original", None)
            if isinstance(refused, train.RefusedError):
                print(f"minipar run: {refused}", file=sys.stderr)
                return 2
            print(f"minipar run: {e}", file=sys.stderr)
            return 1
        train.write(options, report, run.timeline)
    return 0


def rank_main(options: argparse.Namespace) -> dict[str, Any]:
    """What each rank runs; the first one tells the loss of every step."""
    from minipar.trace import tracer

    def tell(step: int, loss: float) -> None:
        if tracer.rank == 0:
            emit("step", loss)

    return train.train(options, device(), tell)


def watch(run: Run, steps: int) -> dict[str, Any]:
    """Draw the bar until the run ends; returns the report."""
    losses: SimpleQueue[float] = SimpleQueue()

    def hear(events: list[Event]) -> None:
        for event in events:
            if event.kind == "step":
                losses.put(event.payload)

    run.subscribe(hear)
    with tqdm(total=steps, unit="step", dynamic_ncols=True) as bar:
        ended = False
        while not ended:
            ended = run.wait(0.1)
            while not losses.empty():
                bar.set_postfix_str(f"loss {losses.get():.3f}", refresh=False)
                bar.update()
    return run.result()[0]

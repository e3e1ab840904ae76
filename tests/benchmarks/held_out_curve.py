"""Does the default run learn the same on four ranks? ``python -m tests.benchmarks.held_out_curve [steps] [--draw]``. Measured.

Trains `minipar run`'s own defaults on one process and on four ranks under several splits, on the same tokens, and compares the loss
on held-out text; target: within 1 %. ``--draw`` makes the README's picture of the curves anew.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several ranks share few cores

import sys
from pathlib import Path
from typing import Any

from course import Ranks, run
from minipar import train
from minipar.trace import now

STEPS, EVERY = 300, 25
PICTURE = Path(__file__).parents[2] / "notebooks" / "images" / "held-out.png"
SPLITS = {
    "one process": (),
    "dp 2 x tp 2, sequence split too": ("--dp", "2", "--tp", "2", "--sequence-parallel"),
    "dp 2 x pp 2, 1f1b, 4 microbatches": ("--dp", "2", "--pp", "2", "--microbatches", "4"),
}


def curve(split: tuple[str, ...], steps: int) -> list[tuple[int, float]]:
    ranks = 4 if split else 1
    own = ["--steps", str(steps), "--evaluate-every", str(EVERY), *split]
    options = train.complete(train.parser().parse_args(own), ranks)
    with Ranks(ranks) as pool:
        return pool.run(run.rank_main, options)[0]["held_out_loss"]["values"]


def draw(curves: dict[str, list[tuple[int, float]]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes: Any = figure.subplots()
    for i, (name, points) in enumerate(curves.items()):
        steps, losses = zip(*points, strict=True)
        if i == 0:
            axes.plot(steps, losses, color="0.75", linewidth=7, solid_capstyle="round", label=name)
        else:
            axes.plot(steps, losses, ["-", "--"][i - 1], linewidth=1.8, label=f"four ranks: {name}")
    axes.set(xlabel="steps of 2,048 tokens", ylabel="loss on held-out text, nats a byte", xlim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    steps = numbers[0] if numbers else STEPS
    curves, worst = {}, 0.0
    for name, split in SPLITS.items():
        began = now()
        curves[name] = curve(split, steps)
        apart = curves[name][-1][1] / curves["one process"][-1][1] - 1
        worst = max(worst, abs(apart))
        print(
            f"  {name:36} held-out loss {curves[name][-1][1]:.4f} after {steps} steps ({apart:+.4%}), {now() - began:.0f} s",
            flush=True,
        )
    if "--draw" in sys.argv:
        draw(curves)
    if not worst < 0.01:
        raise SystemExit("more than 1 % apart")


if __name__ == "__main__":
    main()

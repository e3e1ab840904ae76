"""Predicted steps of ``blend`` beside paced ones on this machine's clock: ``python -m tests.benchmarks.bench_blend_plan``.

Ten layouts of 2 to 8 ranks, each step slowed down to four seconds; target: within 5 %. Also, how long a prediction and the
ranking of a thousand splits take.
"""

from __future__ import annotations

import statistics

from course.labs.lab_blend import small
from course.labs.slow_motion import slowed
from course.labs.work_blend import blend_step
from minipar import GPTConfig
from minipar.hardware import PRESETS, Cluster
from minipar.planner import Job, Transformer, plan, predict_step
from minipar.trace import now
from tests.benchmarks.pairs import on_ranks

CONFIG = GPTConfig(layers=4, width=64, heads=8, seq=64)
SHOWN, ROUNDS = 4.0, 1  # eight ranks on two cores need that long for their real work
LAYOUTS = [
    (Job(CONFIG, 16, dp=4, microbatches=2), "a100-nvlink"),
    (Job(CONFIG, 16, tp=4, sequence_parallel=True), "a100-nvlink"),
    (Job(CONFIG, 16, cp=4), "a100-nvlink"),
    (Job(CONFIG, 16, pp=4, microbatches=8), "two-nodes-100gbe"),
    (Job(CONFIG, 16, dp=2, tp=2, sequence_parallel=True), "two-nodes-100gbe"),
    (Job(CONFIG, 16, pp=2, tp=2, microbatches=4), "a100-nvlink"),
    (Job(CONFIG, 16, pp=2, cp=2, microbatches=4, schedule="zb-h1"), "a100-nvlink"),
    (Job(CONFIG, 16, dp=2, pp=2, tp=2, microbatches=4, sequence_parallel=True), "two-nodes-100gbe"),
    (Job(CONFIG, 16, dp=2, pp=4, microbatches=8), "laptop-wifi"),
    (Job(CONFIG, 16, dp=4, tp=2, sequence_parallel=True), "a100-nvlink"),
]


def paced(job: Job, hardware: Cluster) -> list[float]:
    """Seconds that paced steps take on this rank, by this machine's clock."""
    return [blend_step(job, hardware, wait=True).wall for _ in range(ROUNDS)]


def main() -> None:
    print("layout                                  predicted       paced")
    errors = []
    for job, link in LAYOUTS:
        where = small(PRESETS[link])
        expected = predict_step(job, where).seconds
        hardware = slowed(where, SHOWN / expected)
        everyones = on_ranks(job.ranks, paced, job, hardware)
        took = statistics.median(max(each) for each in zip(*everyones, strict=True))
        errors.append(abs(took / SHOWN - 1))
        axes = " x ".join(f"{name} {size}" for name, size in job.mesh.items() if size > 1)
        print(f"{axes + ', ' + link:38}  {SHOWN:6.3f} s    {took:6.3f} s   off by {100 * (took / SHOWN - 1):+.1f} %")
    print(f"mean {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %; target 5 %")
    began = now()
    for _ in range(10):
        predict_step(LAYOUTS[7][0], small(PRESETS["a100-nvlink"]))
    print(f"one prediction for 8 ranks: {(now() - began) * 100:.1f} ms")
    model = Transformer(126, 16384, 128, 128_256, 8192, kv_heads=8, ffn=53_248, gated=True, biases=False, learned_positions=False)
    began = now()
    plans = plan(model, "h100-nvlink-ib", 16_384, 2048)
    count = len(plans.fitting) + len(plans.too_large)
    print(f"{count} splits for 16,384 devices ranked in {now() - began:.2f} s; target 1,000 in 1 s")


if __name__ == "__main__":
    main()

"""What a run has to say at its end: each number with where it comes from."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from minipar import comm, data, pacing
from minipar.comm import wire_bytes
from minipar.mesh import Mesh
from minipar.options import AXES, gpt_config
from minipar.planner.job import Job
from minipar.planner.traffic import bytes_by_axis
from minipar.trace import COMM, Span, Timeline
from minipar.unfinished import whole


@dataclass
class Measured:
    """What one rank saw while it trained; this run only, not what a checkpoint brought along."""

    seconds: list[float] = field(default_factory=list)  # of each step
    tokens: int = 0  # of the global batch
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)  # bytes on the wire, by (operation, axis)
    memory: dict[str, int] = field(default_factory=dict)  # bytes of tensors, by kind


def bytes_sent(spans: Sequence[Span]) -> Counter[tuple[str, str]]:
    """Bytes that this rank put on the wire, by operation and axis."""
    sent: Counter[tuple[str, str]] = Counter()
    for span in spans:
        if span.lane == COMM and span.nbytes:
            sent[span.name, span.axis] += span.nbytes  # type: ignore[assignment]
    return sent


def report(
    options: argparse.Namespace,
    mesh: Mesh,
    parameters: int,
    losses: list[float],
    held_out: list[tuple[int, float]],
    own: Measured,
    bubble: tuple[float, float] | None,
) -> dict[str, Any]:
    """The report, the same on every rank; every rank must ask for it.

    ``parameters``: of the whole model. ``bubble``: of this rank's pipeline, predicted and as it ran; None where there is none.
    """
    everyone: list[Measured] = comm.gather_objects(own, mesh.world)
    bubble = comm.gather_objects(bubble, mesh.world)[0]
    sent: Counter[tuple[str, str]] = Counter()
    for one in everyone:
        sent.update(one.sent)
    first, steps = everyone[0], len(own.seconds)
    timed = "measured" if pacing.current() is None else "paced"
    found: dict[str, Any] = {
        "text": {"sha256": data.corpus_sha256(), "bytes": len(data.corpus())},
        "model": asdict(gpt_config(options)) | {"parameters": parameters, "dtype": options.dtype},
        "split": {name: getattr(options, name) for name in AXES} | {"microbatches": options.microbatches},
        "ranks": mesh.world.size,
        "training": {name: getattr(options, name) for name in TRAINING} | {"batch_tokens": options.rows * options.seq},
        "loss": {"values": losses, "source": "measured"},
        "held_out_loss": {"values": held_out, "source": "measured", "what": "(steps done, mean loss on text never trained on)"},
        "tokens_per_second": {"value": _speed(first), "source": timed, "steps": max(1, steps - 1)},
        "bytes_by_collective": {
            "value": {f"{op} over {axis}": nbytes for (op, axis), nbytes in sorted(sent.items())},
            "source": "counted",
            "what": f"put on the wire by all ranks together, in {steps} steps",
        },
        "bytes_by_axis": {
            "counted": _by_axis(sent, steps),
            "predicted": predicted_bytes(options),
            "what": "put on the wire by all ranks together, in each step"
            + (" (predicted as if every expert were chosen equally often)" if options.experts else ""),
        },
        "memory": {"value": [one.memory for one in everyone], "source": "counted", "what": "bytes of tensors, by rank"},
    }
    if bubble is not None:
        predicted, seen = bubble
        found["bubble"] = {"predicted": predicted, timed: seen, "what": "idle share of the last step's first pipeline"}
    return found


def job_of(options: argparse.Namespace) -> Job:
    """What the planner has to know of this run."""
    number_bytes = {"float32": 4, "float64": 8}[options.dtype]
    return Job(
        gpt_config(options), options.rows, options.dp, options.pp, options.cp, options.tp, options.ep, options.microbatches,
        options.schedule, options.chunks, options.sequence_parallel, options.context, options.bucket_mb * 1e6, number_bytes,
    )  # fmt: skip


def predicted_bytes(options: argparse.Namespace) -> dict[str, float]:
    """Bytes that all ranks together will put on the wire in each step, by axis: forward, backward, and the clip's norm."""
    job = job_of(options)
    norm = {"world": job.ranks * wire_bytes("all_reduce", NORM, job.ranks)} if options.clip and job.ranks > 1 else {}
    return {axis: float(nbytes) for axis, nbytes in sorted((bytes_by_axis(job) | norm).items())}


def _by_axis(sent: Counter[tuple[str, str]], steps: int) -> dict[str, float]:
    total: Counter[str] = Counter()
    for (_, axis), nbytes in sorted(sent.items()):
        total[axis] += nbytes
    return {axis: nbytes / steps for axis, nbytes in sorted(total.items())}


NORM = 8  # bytes of a gradient norm, always in float64
TRAINING = (
    "steps", "rows", "optimizer", "lr", "warmup", "final_lr", "weight_decay", "clip", "seed", "bucket_mb", "schedule",
)  # fmt: skip


def _speed(own: Measured) -> float:
    """Tokens of a step over the median step; the first step, which builds the buckets and warms the caches, only if it is alone."""
    return own.tokens / len(own.seconds) / statistics.median(own.seconds[1:] or own.seconds)


def summary(report: dict[str, Any]) -> str:
    """The report in a few lines."""
    losses, held_out, speed = report["loss"]["values"], report["held_out_loss"]["values"], report["tokens_per_second"]
    lines = [f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps (measured)"]
    if held_out:
        step, loss = held_out[-1]
        when = "" if step == len(losses) else f" after step {step}"  # a resumed run need not have looked again
        lines.append(f"loss on held-out text {loss:.3f}{when} (measured)")
    lines.append(f"{speed['value']:,.0f} tokens/s ({speed['source']})")
    if "bubble" in report:
        shares = [f"{100 * value:.1f} % {source}" for source, value in report["bubble"].items() if source != "what"]
        lines.append(f"bubble {', '.join(shares)}")
    fullest = max(report["memory"]["value"], key=lambda kinds: sum(kinds.values()))
    lines.append("fullest rank: " + ", ".join(f"{kind} {n / 1e6:,.2f} MB" for kind, n in fullest.items()) + " (counted)")
    counted, predicted = report["bytes_by_axis"]["counted"], report["bytes_by_axis"]["predicted"]
    for axis in sorted(counted | predicted):
        own, foretold = counted.get(axis, 0), predicted.get(axis, 0)
        lines.append(f"{own:,.0f} bytes a step over {axis} (counted; predicted {foretold:,.0f})")
    return "\n".join([*lines, f"text sha256 {report['text']['sha256'][:16]}..."])


def write(options: argparse.Namespace, report: dict[str, Any], timeline: Timeline) -> None:
    """Write the report and the trace where they are wanted; print the summary. Raises RefusedError where writing fails."""
    try:
        if options.json is not None:
            whole(options.json, lambda path: path.write_text(json.dumps(report, indent=1) + "\n"))
        if options.trace is not None:
            whole(options.trace, timeline.to_chrome_trace)
    finally:  # last, since who reads it may have gone: ``| head``
        print(summary(report))

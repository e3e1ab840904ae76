"""What may be asked of a training run on the command line, and what is refused before anything starts."""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from minipar.checks import RefusedError
from minipar.choices import BUCKET_BYTES, METHODS, OPTIMIZERS
from minipar.pipeline_parallel import NAMES as SCHEDULES
from minipar.pipeline_parallel import build as build_schedule

if TYPE_CHECKING:
    from minipar.model import GPTConfig

LAYERS = 4  # unless the pipeline has more stages
ENDS = 2  # the embedding and the head may be stages of their own
AXES = {"dp": "the rows", "pp": "the layers", "cp": "the tokens of a row", "tp": "the matrices", "ep": "the experts"}
DTYPES = ("float32", "float64")


class OneSentence(argparse.ArgumentParser):
    """Says what is wrong with a word, and not all the words that there are."""

    def error(self, message: str) -> NoReturn:
        raise RefusedError(f"{message}; --help lists all options")


def parser(prog: str = "python -m minipar.train") -> argparse.ArgumentParser:
    top = OneSentence(prog=prog, description="Train the small GPT on the text of Python's standard library.")
    _split(top.add_argument_group("split"))
    _model(top.add_argument_group("model"))
    _training(top.add_argument_group("training"))
    _files(top.add_argument_group("files"))
    return top


def _split(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dp", type=int, help="ranks that the rows are split over (default: those that the other axes leave)")
    for name, what in AXES.items():
        if name != "dp":
            group.add_argument(f"--{name}", type=int, default=1, help=f"ranks that {what} are split over")
    group.add_argument("--microbatches", type=int, default=1, help="parts of each rank's rows, worked on one after the other")
    group.add_argument("--schedule", default="1f1b", choices=SCHEDULES, help="order of the pipeline's work, where pp > 1")
    group.add_argument("--chunks", type=int, help="model chunks on each rank of the pipeline (default: the schedule's own number)")
    group.add_argument("--sequence-parallel", action="store_true", help="split over tp what lies between the matrices, too")
    group.add_argument("--context", default="zigzag", choices=METHODS, help="how attention goes over cp")
    group.add_argument("--bucket-mb", type=float, default=BUCKET_BYTES / 1e6, help="MB of gradients that travel together")


def _model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--layers", type=int, help=f"default: {LAYERS}, or as many as the stages of the pipeline need")
    for name, default in (("width", 128), ("heads", 4), ("seq", 128)):
        group.add_argument(f"--{name}", type=int, default=default)
    group.add_argument("--experts", type=int, default=0, help="experts in each layer (default: none, every MLP is dense)")
    group.add_argument("--top-k", type=int, default=2, help="experts that each token goes to")
    group.add_argument("--tied", action="store_true", help="the head shares the matrix of the embedding")
    group.add_argument("--dropout", type=float, default=0.0)
    group.add_argument("--dtype", default="float32", choices=DTYPES)
    group.add_argument("--memory-gb", type=float, help="what ranks that share a memory may take of it (default: what is free)")


def _training(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--steps", type=int, default=100)
    batch = group.add_mutually_exclusive_group()
    batch.add_argument("--rows", type=int, default=16, help="sequences in the global batch")
    batch.add_argument("--batch-tokens", type=int, help="the global batch in tokens, a multiple of --seq, instead of --rows")
    group.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    group.add_argument("--lr", type=float, default=1e-3, help="the highest learning rate")
    group.add_argument("--warmup", type=int, default=10, help="steps in which the learning rate rises to --lr")
    group.add_argument("--final-lr", type=float, default=0.1, help="the share of --lr left at the last step, after half a cosine")
    group.add_argument("--weight-decay", type=float, default=0.1, help="of matrices; norms and biases have none")
    group.add_argument("--clip", type=float, default=1.0, help="the largest norm of the gradient; 0: any")
    group.add_argument("--seed", type=int, default=0, help="of the first weights and of dropout")
    group.add_argument("--evaluate-every", type=int, default=0, help="steps between two losses on held-out text (0: never)")


def _files(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", type=Path, help="write the report here")
    group.add_argument("--trace", type=Path, help="write a Chrome trace here, to open in https://ui.perfetto.dev")
    group.add_argument("--save", type=Path, help="keep checkpoints in this folder, which all ranks must see")
    group.add_argument("--save-every", type=int, default=0, help="steps between two checkpoints (0: one at the end)")
    group.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --save, under any split")


def complete(options: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Fill in what was left open, and refuse what cannot run on this many ranks with a ``ValueError`` that says why."""
    _refuse_below_one(options, ranks)
    others = options.pp * options.cp * options.tp
    if options.dp is None:
        options.dp = max(1, ranks // others)
    if options.dp * others != ranks:
        factors = " x ".join(f"{name} {getattr(options, name)}" for name in ("dp", "pp", "cp", "tp"))
        raise ValueError(f"{factors} = {options.dp * others} ranks, but there are {ranks}: the sizes must multiply to the ranks")
    _refuse_bad_numbers(options)
    _refuse_bad_batch(options)
    if options.layers is None:
        options.layers = max(LAYERS, _stages(options) - ENDS)
    _refuse_bad_model(options)
    if options.save is None and (options.resume or options.save_every):
        raise ValueError("--save-every and --resume need --save: the folder of the checkpoints")
    if options.json is not None and options.trace is not None and options.json.resolve() == options.trace.resolve():
        raise ValueError(f"--json and --trace are both {options.json}, and one would overwrite the other: name two files")
    return options


def _refuse_below_one(options: argparse.Namespace, ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a run needs at least 1 rank, but there are {ranks}")
    for name in (*AXES, "steps", "rows", "seq", "microbatches"):
        value = getattr(options, name)
        if value is not None and value < 1:  # --dp may be left out
            raise ValueError(f"--{name} must be at least 1, not {value}")


def _refuse_bad_numbers(options: argparse.Namespace) -> None:
    for name in ("warmup", "weight_decay", "clip", "evaluate_every", "save_every", "experts"):
        if not getattr(options, name) >= 0:
            raise ValueError(f"--{name.replace('_', '-')} must not be below 0, and is {getattr(options, name)}")
    for name in ("lr", "bucket_mb", "memory_gb"):
        if getattr(options, name) is not None and not getattr(options, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0, not {getattr(options, name)}")
    for name in ("lr", "weight_decay"):
        if math.isinf(getattr(options, name)):
            raise ValueError(f"--{name.replace('_', '-')} must be finite: one step would leave no number in the weights")
    if not -(2**63) <= options.seed < 2**63:
        raise ValueError(f"--seed must fit into 64 bits, and {options.seed} does not")
    if not 0 <= options.dropout < 1:
        raise ValueError(f"--dropout is a share of the values, from 0 to below 1, not {options.dropout}")
    if not 0 <= options.final_lr <= 1:
        raise ValueError(f"--final-lr is a share of --lr, from 0 to 1, not {options.final_lr}")


def _refuse_bad_batch(options: argparse.Namespace) -> None:
    if options.batch_tokens is not None:
        options.rows, rest = divmod(options.batch_tokens, options.seq)
        if rest or not options.rows:
            raise ValueError(f"--batch-tokens {options.batch_tokens} does not divide into sequences of {options.seq} tokens")
    parts = options.dp * options.microbatches
    if options.rows < parts:
        raise ValueError(
            f"a batch of {options.rows} rows does not reach for dp {options.dp} x {options.microbatches} microbatches: "
            f"take at least --rows {parts}"
        )


def _refuse_bad_model(options: argparse.Namespace) -> None:
    config = gpt_config(options)
    stages = _stages(options)
    if stages > config.layers + ENDS:
        have = f"{config.layers} layers, the embedding and the head"
        raise ValueError(f"{have} are too few for {stages} stages: take at least --layers {stages - ENDS}")
    if options.ep > 1 and not options.experts:
        raise ValueError(f"--ep {options.ep} splits experts, and this model has none: take --experts, or leave --ep out")


def _stages(options: argparse.Namespace) -> int:
    if options.pp == 1:
        return 1
    return build_schedule(options.schedule, options.pp, options.microbatches, options.chunks).stages


def refuse_unwritable(options: argparse.Namespace) -> None:
    """Find out before an hour of training, not after it, that a file cannot be written; makes the folder of checkpoints."""
    for path in filter(None, (options.json, options.trace)):
        _refuse_folder(path, path.parent)
        if path.is_dir():
            raise RefusedError(f"cannot write {path}: it is a folder")
    if options.save is not None:
        try:
            options.save.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise RefusedError(f"cannot keep checkpoints in {options.save}: {e.strerror}") from e
        _refuse_folder(options.save, options.save)


def _refuse_folder(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as e:
        raise RefusedError(f"cannot write {path}: {e.strerror}") from e


def gpt_config(options: argparse.Namespace) -> GPTConfig:
    from minipar.model import GPTConfig  # and with it torch, which no bad word waits for

    return GPTConfig(
        options.layers,
        options.width,
        options.heads,
        seq=options.seq,
        tied=options.tied,
        dropout=options.dropout,
        experts=options.experts,
        top_k=options.top_k,
    )

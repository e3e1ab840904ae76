"""The ``minipar`` command. Each sub-command's body is imported when it is called, so ``minipar --help`` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minipar.output import may_go_unread


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code: 0 if all is well."""
    with may_go_unread():
        return _command(list(sys.argv[1:] if argv is None else argv))


def _command(words: list[str]) -> int:
    if words[:1] == ["run"]:  # its options are the training program's own
        try:
            from course import run

            return run.main(words[1:])
        except KeyboardInterrupt:  # while torch is loaded, too
            return 130
    if words[:1] == ["lab"]:  # what follows goes to JupyterLab as it is
        from course.lab import main as open_lab

        return open_lab(words[1:])
    options = parser().parse_args(words)
    return int(options.body(options) or 0)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="minipar", description="Learn how large networks are trained across many devices.")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    doctor = commands.add_parser("doctor", help="what this machine has, what runs here, and what to do about each problem")
    doctor.add_argument("--ranks", type=int, default=4, help="how many ranks the lessons start (default 4)")
    doctor.set_defaults(body=_doctor)

    commands.add_parser("lab", help="open JupyterLab on the first lesson", add_help=False)
    commands.add_parser("run", help="train the small GPT on several ranks", add_help=False)

    trace = commands.add_parser("trace", help="check a Chrome trace and sum up what each rank did")
    trace.add_argument("file", type=Path, help="a trace written by minipar, or by `minipar run --trace`")
    trace.set_defaults(body=_trace)

    bake = commands.add_parser("bake", help="run notebooks and store them with static pictures")
    bake.add_argument("notebooks", type=Path, nargs="+", metavar="NOTEBOOK")
    bake.set_defaults(body=_bake)

    clean = commands.add_parser("clean", help="end ranks that an earlier crash left behind")
    clean.set_defaults(body=_clean)
    return top


def _doctor(options: argparse.Namespace) -> int:
    from course.doctor import main as doctor

    return doctor(options.ranks)


def _trace(options: argparse.Namespace) -> int:
    from course.traces import main as trace

    return trace(options.file)


def _bake(options: argparse.Namespace) -> int:
    from course.bake import BakeError, bake

    try:
        for path in bake(options.notebooks):
            print(f"stored {path}")
    except (BakeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _clean(options: argparse.Namespace) -> None:
    from course.ranks.strays import clean

    print("\n".join(clean()) or "Nothing was left behind.")


if __name__ == "__main__":
    sys.exit(main())

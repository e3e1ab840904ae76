"""What the learner reads when something went wrong: whose line, which rank, what to do. None of our own frames."""

from __future__ import annotations

import contextlib
import linecache
import signal
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from course.ranks import wire
from course.ranks.calls import is_library, is_minipars
from course.ranks.report import Failure
from course.ranks.slots import Where

if TYPE_CHECKING:
    from course.ranks.run import Run
    from course.ranks.watchdog import Scene


class Trouble(NamedTuple):
    """Why a run did not end by itself on all ranks."""

    kind: str  # "failed", "died", "stuck", "out of step", "timeout", "stopped", "interrupted", "left"
    lines: tuple[str, ...] = ()


class _Told(BaseException):
    """An exception whose text is the whole story; a notebook shows it without a traceback of ours."""

    def __init__(self, headline: str, lines: Iterable[str] = ()) -> None:
        self.headline, self.lines = headline, tuple(lines)
        super().__init__("\n".join((headline, *self.lines)))

    @property
    def story(self) -> tuple[str, ...]:
        """The lines without the last, which says how the next run finds the ranks."""
        return self.lines[:-1]

    def _render_traceback_(self) -> list[str]:
        _forget_our_frames(self.__traceback__)
        name = type(self).__name__
        return [f"\x1b[1;31m{name}\x1b[0m: \x1b[1m{self.headline}\x1b[0m", *self.lines]


def _forget_our_frames(trace: TracebackType | None) -> None:
    """IPython keeps the last traceback; ``Ranks`` in the locals of our frames would then outlive the learner's variable."""
    for frame, _ in traceback.walk_tb(trace):
        if "/course/ranks/" in frame.f_code.co_filename:
            with contextlib.suppress(RuntimeError):  # still running
                frame.clear()


class RankError(_Told, RuntimeError):
    """A rank raised. ``rank`` is the first one; ``original`` its exception, where that could travel."""

    rank: int = -1
    original: BaseException | None = None


class RankDied(_Told, RuntimeError):  # noqa: N818  # what happened is the name
    """A rank's process ended: killed, out of memory, crashed, ``os._exit``. ``rank`` says which, ``signal`` by what (0: none)."""

    rank: int = -1
    signal: int = 0


class RanksStuck(_Told, RuntimeError):  # noqa: N818  # what happened is the name
    """Ranks wait for a call that will never come."""


class RanksTimeout(_Told, TimeoutError):  # noqa: N818  # what happened is the name
    """The run took longer than its ``timeout``."""


class RanksStopped(_Told, RuntimeError):  # noqa: N818  # what happened is the name
    """The run was stopped before its end."""


class RanksInterrupted(_Told, KeyboardInterrupt):
    """The kernel was interrupted while it waited for the ranks."""

    def __init__(self, told: object) -> None:
        headline = getattr(told, "headline", "interrupted; the ranks had just finished")
        super().__init__(headline, getattr(told, "lines", ()))


def explain(run: Run, trouble: Trouble, scene: Scene, lost: list[int]) -> BaseException | None:
    """The error that ends ``run``. ``lost`` are the ranks that were forked again."""
    after = [_fate(scene, lost, run.ranks)]
    if trouble.kind == "left":
        return None
    if scene.dead:
        return _died(min(scene.dead), scene, after)
    if trouble.kind == "failed":
        return _failed(scene, after)
    if trouble.kind in ("stuck", "out of step"):
        return RanksStuck(f"{run.name}: the ranks do not meet", [*trouble.lines, *_step_details(trouble, scene), *after])
    if trouble.kind == "timeout":
        return RanksTimeout(f"{run.name} did not end within its timeout of {run.timeout:g} s", [*stacks(scene), *after])
    word = "interrupted" if trouble.kind == "interrupted" else "stopped"
    return RanksStopped(f"{run.name} was {word}", [others(scene), *after])


def _step_details(trouble: Trouble, scene: Scene) -> list[str]:
    from course.ranks.watchdog import details

    return details(scene.ledgers) if trouble.kind == "out of step" else []


def _died(rank: int, scene: Scene, after: list[str]) -> RankDied | RanksStuck:
    from course.ranks.watchdog import difference

    status = scene.dead[rank]
    if status == -signal.SIGABRT and (lines := difference(scene.ledgers)):
        return RanksStuck("the ranks do not meet, and the backend gave up", [*lines, f"rank {rank} {ending(status)}", *after])
    hint = " (the system does that when memory runs out)" if status == -signal.SIGKILL else ""
    error = RankDied(f"rank {rank} {ending(status)}{hint}", [others(scene, rank), *after])
    error.rank, error.signal = rank, max(0, -status)
    return error


def _failed(scene: Scene, after: list[str]) -> RankError:
    from course.ranks.watchdog import difference

    everyone = list(scene.failures.values())
    failures = [f for f in everyone if f.kind != "interrupted"] or everyone
    first = min(failures, key=lambda f: (bool(f.in_call), f.time))
    differs = difference(scene.ledgers) if first.in_call else []
    lines = [*traceback_lines(first), *differs, others(scene, first.rank), *after]
    error = RankError(_headline(first), lines)
    error.rank = first.rank
    if first.pickled:
        with contextlib.suppress(Exception):
            error.original = wire.loads(first.pickled)
    return error


def _headline(failure: Failure) -> str:
    rank, message = failure.rank, failure.message
    if failure.kind == "function":
        return f"rank {rank} could not unpack your function: {message}; is its module importable, and is it up to date?"
    if failure.kind == "result":
        return f"rank {rank}: what the function returned cannot be sent back ({message}); return numbers, tensors or plain data"
    if failure.kind == "exit":
        return f"rank {rank} called sys.exit ({message})"
    if failure.kind == "interrupted":
        return f"rank {rank} was interrupted by SIGINT, and not from the notebook"
    return f"rank {rank} raised {message}"


def ending(status: int) -> str:
    """``status`` as ``subprocess`` has it: negative for a signal."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
        return f"was killed by signal {-status}"
    return f"ended by itself with exit code {status} (os._exit?)"


def these_ranks(ranks: Iterable[int]) -> str:
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def others(scene: Scene, but: int = -1) -> str:
    """One line: what every other rank was doing."""
    parts = []
    for state in scene.states:
        if state.rank != but:
            parts.append(f"{state.rank} {_doing(state, scene)}")
    return f"{'other ranks' if but >= 0 else 'ranks'}: {'; '.join(parts)}" if parts else "there is no other rank"


def _doing(state: Any, scene: Scene) -> str:
    if state.rank in scene.dead:
        return "dead"
    if state.rank in scene.finished:
        failed = scene.failures.get(state.rank)
        if failed is None:
            return "had returned"
        return f"failed in {failed.in_call}" if failed.in_call else "raised too"
    call = scene.waiting(state.rank)
    if call is not None:
        return f"waited in {call.op} ({place(call.where)})"
    if state.op:
        return f"waited in {state.op} ({place(state.where)})"
    where = user_frame(scene.stacks.get(state.rank, ()))
    return f"was running ({place(where)})" if where else "was running"


def _fate(scene: Scene, lost: list[int], size: int) -> str:
    """What became of the variables."""
    if not lost:
        return "All ranks are idle and keep their variables."
    gone = f"{these_ranks(lost)} {'was' if len(lost) == 1 else 'were'} started again: variables there are gone"
    kept = [rank for rank in range(size) if rank not in lost]
    return f"{gone}; {these_ranks(kept)} {'keeps its own' if len(kept) == 1 else 'keep theirs'}." if kept else f"{gone}."


# ---- showing code


def traceback_lines(failure: Failure) -> list[str]:
    lines: list[str] = []
    if failure.kind in ("result", "function"):
        return lines  # our own lines would be no help
    if failure.cause is not None:
        lines += [*traceback_lines(failure.cause), f"  {failure.cause.message}", failure.relation]
    return lines + frame_lines(failure.frames)


def frame_lines(frames: tuple[Where, ...]) -> list[str]:
    """The learner's own lines with their code; runs of library frames in one line each."""
    lines: list[str] = []
    folded: list[Where] = []
    for frame in (*frames, None):
        if frame is not None and frame.file and is_library(frame.file):
            folded.append(frame)
            continue
        if folded and lines:
            last = folded[-1]
            many = f"{len(folded)} library frames, the last" if len(folded) > 1 else "1 library frame,"
            lines.append(f"  ({many} {last.function} in {_short(last.file)}:{last.line})")
        folded = []
        if frame is None:
            break
        if not frame.file:
            lines.append(f"  ({frame.line} frames left out)")
            continue
        lines.append(f"  {place(frame)}, in {frame.function}")
        lines += code_line(frame)
    if not lines and frames:  # a lab's own work, say: its line, and not that of the call which it waits in
        beside_ours = [f for f in frames if "/course/ranks/" not in f.file]
        last = ([f for f in frames if is_minipars(f.file)] or beside_ours or list(frames))[-1]
        lines = [f"  {place(last)}, in {last.function}", *code_line(last)]
    return lines


def stacks(scene: Scene) -> list[str]:
    """Where every unfinished rank was."""
    lines = []
    for state in scene.states:
        lines.append(f"rank {state.rank} {_doing(state, scene)}")
        if state.rank not in scene.finished:
            lines += frame_lines(scene.stacks.get(state.rank, ()))
    return lines


def user_frame(frames: tuple[Where, ...]) -> Where | None:
    return next((f for f in reversed(frames) if f.file and not is_library(f.file)), None)


def place(where: Where) -> str:
    """``line 4 of Cell In[3]``, or ``line 4 of train.py``."""
    return f"line {where.line} of {_file_name(where.file)}" if where.file else "an unknown line"


def code_line(where: Where) -> list[str]:
    text = linecache.getline(where.file, where.line).strip()
    return [f"      {text}"] if text else []


def _file_name(file: str) -> str:
    if file.startswith("<%%ranks"):
        return "the %%ranks cell"
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        with contextlib.suppress(Exception):
            label = shell.compile.format_code_name(file)
            if label:
                return " ".join(label)
    return _short(file)


def _short(file: str) -> str:
    for mark in ("/site-packages/", "/minipar/"):
        if mark in file:
            return (mark.strip("/") + "/" if mark == "/minipar/" else "") + file.rpartition(mark)[2]
    return file.rpartition("/")[2]

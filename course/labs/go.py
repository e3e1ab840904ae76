"""One run of a lab: on borrowed ranks, drawn while it goes on, ended when nobody wants it any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from course.labs.driver import LOOK, Cancelled
from course.labs.pool import borrowed, paced
from course.labs.slow_motion import Keep, Restored, restored
from minipar.hardware import Cluster
from minipar.trace import Span, Timeline


def _all_but_barriers(span: Span) -> bool:
    return span.name != "barrier"


def _in_its_time(view: Any, factor: float, keep: Keep, hardware: Cluster | None) -> Any:
    return Restored(view, factor, keep, hardware) if hasattr(view, "begin") else view


class Outcome(NamedTuple):
    """How a run went. ``timeline`` is in the time of the modelled hardware."""

    run: Any  # the finished ``course.ranks.Run``
    timeline: Timeline
    error: BaseException | None


class Go:
    """What ``Lab.measure`` runs ranks with: ``timeline, out = go(4, function, *args, live=[view])``."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self.cancelled = cancelled

    def __call__(self, n: int, function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Timeline, list[Any]]:
        """The timeline of ``function(*args)`` on ``n`` ranks, and what each returned. Raises what went wrong there."""
        outcome = self.outcome(n, function, *args, **options)
        return outcome.timeline, outcome.run.result()

    def outcome(
        self,
        n: int,
        function: Callable[..., Any],
        *args: Any,
        hardware: Cluster | None = None,
        factor: float = 1.0,
        keep: Keep = _all_but_barriers,
        live: Sequence[Any] = (),
        watch: Callable[[Any], None] | None = None,
        timeout: float = 120.0,
    ) -> Outcome:
        """The same, where going wrong may be the point.

        ``hardware`` paces the ranks; slowed down by ``factor``, its times are brought back to the modelled hardware's own.
        ``keep`` says which spans count, in the timeline and in the ``live`` views that follow the run.
        ``watch`` is called with the ranks again and again while they run. Raises ``Cancelled`` when newer values are there.
        """
        from course.live import live as follow

        with borrowed(n) as ranks:
            if self.cancelled():
                raise Cancelled
            run = ranks.start(paced(hardware, function), *args, timeout=timeout)
            following = follow(run, *(_in_its_time(view, factor, keep, hardware) for view in live)) if live else None
            while not run.wait(LOOK):
                if watch is not None:
                    watch(ranks)
                if self.cancelled():
                    run.stop()
                    if watch is not None:
                        watch(ranks)  # what they do now: whoever saw them last saw them run
                    raise Cancelled
        if following is not None:
            following.wait(30.0)
        return Outcome(run, restored(run.timeline, factor, keep, hardware), run.error)

"""The processes of one ``Ranks``, what they say, and what that means.

Everything here happens in the reader thread, unless noted.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
from collections import deque
from pathlib import Path
from typing import Any

from course.ranks import errors, recovery, strays, surroundings, watchdog, wire
from course.ranks.errors import Trouble
from course.ranks.hub import hub, send_to_all
from course.ranks.member import Member
from course.ranks.run import Event, Run, spans_of
from course.ranks.server import fork_server
from course.ranks.slots import DEAD, STATES, RankState, Slots
from minipar.trace import now

_numbers = itertools.count(1)


class Pool:
    """``size`` ranks and the run they work on, if any. ``lock`` guards every change of state, ``changed`` announces it."""

    def __init__(self, size: int, device: str, hardware: Any) -> None:
        self.size, self.device, self.hardware = size, device, hardware
        self.hub = hub()
        self.server = fork_server()
        self.name = f"pool-{next(_numbers)}"
        self.home: Path = strays.home() / self.name
        self.home.mkdir(mode=0o700)
        self.slots = Slots(self.home / "slots", size, create=True)
        self.lock = threading.RLock()  # for "with": an interrupt never comes between its last line and the release, which is C
        self.changed = threading.Condition(self.lock)
        self.members: list[Member] = []
        self.run: Run | None = None
        self.latest: Run | None = None  # the same, and kept when it has ended
        self.runs = itertools.count(1)
        self.busy_until_recovered = False
        self.closed = False
        self.noise: deque[str] = deque(maxlen=50)  # printed outside of a run
        self._generation = itertools.count(1)
        self._store: Path | None = None
        self._asks = itertools.count(1)
        self._suspect = watchdog.Suspect()
        self.left_over: list[str] = []  # a line for messages that nobody has received yet

    # ---- starting and ending (any thread)

    def open(self) -> None:
        self.hub.post(lambda: self.hub.tickers.add(self.tick))
        self.server.on_interrupt.add(self.kernel_interrupted)
        recovery.start(self, range(self.size))

    def close(self, wait: bool = True) -> None:
        """End all ranks. Safe from any thread and from a finalizer when ``wait`` is False."""
        if self.closed:
            return
        self.closed = True
        self.hub.post(self._close)
        if wait and not self.hub.is_current_thread:
            with self.lock:
                self.changed.wait_for(lambda: not any(m.alive for m in self.members), 3)

    def _close(self) -> None:
        self.hub.tickers.discard(self.tick)
        self.server.on_interrupt.discard(self.kernel_interrupted)
        self.kill([m for m in self.members if m.alive])
        with self.lock:  # a launch that found these ranks open has begun its run by now
            run, self.run = self.run, None
        if run is not None:
            run.finish(errors.RanksStopped("the ranks were closed while this ran"), "stopped")
        strays.record_ranks(self.name, [])
        shutil.rmtree(self.home, ignore_errors=True)

    def kill(self, members: list[Member]) -> None:
        """Any thread."""
        self.server.signal([m.pid for m in members if m.pid], signal.SIGKILL)
        for m in members:  # after an interrupt none is marked that lives on
            m.killed = True

    # ---- running (any thread)

    def launch(self, name: str, body: bytes | memoryview, timeout: float | None, keeps_messages: bool) -> Run:
        with self.lock:
            if not self.changed.wait_for(lambda: not self.busy_until_recovered or self.closed, 60):
                raise RuntimeError("the ranks are still being restarted; close() them and make new ones")
            self.refuse_if_busy()
            run = Run(self, next(self.runs), name, timeout, keeps_messages)
            dead = [m for m in self.members if not m.is_ready]
            if not dead:
                self._begin(run, body)
                return run
            self.busy_until_recovered = True  # nobody else starts meanwhile
        try:
            run.notes.append(recovery.revive(self, dead))
        finally:
            with self.lock:
                self.busy_until_recovered = False
                self.changed.notify_all()
        with self.lock:
            self.refuse_if_busy()  # another thread may have started or closed meanwhile
            self._begin(run, body)
        return run

    def refuse_if_busy_now(self) -> None:
        """Before the work of pickling; a pool that recovers is waited for later."""
        if not self.busy_until_recovered:
            self.refuse_if_busy()

    def adopt_server(self) -> None:
        """The fork server was lost with all its ranks: go on with another one."""
        self.server.on_interrupt.discard(self.kernel_interrupted)
        self.server = fork_server()
        self.server.on_interrupt.add(self.kernel_interrupted)

    def refuse_if_busy(self) -> None:
        if self.closed or self.hub.is_lost:
            raise RuntimeError(f"these ranks are closed; make new ones: ranks = Ranks({self.size})")
        if self.run is not None:
            seconds = now() - self.run.started
            raise RuntimeError(
                f"these ranks are busy with {self.run.name} (for {seconds:.1f} s now): wait for it with .result(), "
                "end it with .stop(), or make a second pool"
            )

    def _begin(self, run: Run, body: bytes | memoryview) -> None:
        frame = wire.pack(wire.RUN, (run.number, surroundings.packed()), body)
        self.run = self.latest = run
        self._suspect = watchdog.Suspect()
        for m in self.members:
            m.finished, m.failure = False, None
        if not send_to_all([m.messages for m in self.members], frame, run.told):
            self.hub.post(lambda: self._tell(run, frame))

    def _tell(self, run: Run, frame: list[bytes | memoryview]) -> None:
        """Reader thread, where no interrupt comes: all ranks are told, or none."""
        if run is self.run and not self.busy_until_recovered:  # not stopped before
            for m in self.members:
                m.messages.send_packed(frame)
                run.told.append(m.rank)

    def interrupt(self, run: Run, why: str) -> None:
        self.hub.post(lambda: self.trouble(run, Trouble(why)))

    def kernel_interrupted(self, moment: float) -> None:
        if self.run is not None and self.run.started <= moment:  # the fork server tells late: a run that started since is not meant
            self.trouble(self.run, Trouble("interrupted"))

    def join_order(self, rank: int, store: Path) -> dict[str, Any]:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return {
            "rank": rank,
            "size": self.size,
            "store": str(store),
            "slots": self.home / "slots",
            "device": self.device,
            "cpus": cpus,
            "surroundings": surroundings.packed(),
            "env": self.server.environment_of_ranks(),
        }

    def new_store(self) -> Path:
        """A rendezvous file for one process group; kept as long as the group, since every ``new_group`` meets in it again."""
        self._store = self.home / f"store-{next(self._generation)}"
        return self._store

    def drop_store(self) -> None:
        """Remove the rendezvous file of the group before."""
        if self._store is not None:
            self._store.unlink(missing_ok=True)

    # ---- what ranks say (reader thread)

    def heard(self, m: Member, frame: wire.Frame) -> None:
        if frame.kind == wire.DONE:
            self._done(m, frame)
        elif frame.kind == wire.EVENTS:
            self._events(m, frame.meta)
        elif frame.kind in (wire.READY, wire.LEFT):
            with self.lock:
                m.state = "ready" if frame.kind == wire.READY else "left"
                if frame.kind == wire.READY:
                    m.info, m.failure = frame.meta["info"], frame.meta["failure"]
                self.changed.notify_all()

    def _events(self, m: Member, batch: dict[str, Any]) -> None:
        run = self.run
        if run is None or run.number != batch["run"]:
            return
        events = [Event("spans", m.rank, now(), spans_of(batch["spans"]))] if batch["spans"] else []
        for kind, time, payload in batch["emitted"]:
            try:
                events.append(Event(kind, m.rank, time, wire.loads(payload)))
            except Exception as error:
                run.notes.append(f"an event {kind!r} of rank {m.rank} could not be read here: {error}")
        run.add(events)

    def printed(self, rank: int, stream: str, text: str) -> None:
        if self.run is not None and text:
            self.run.add([Event("print", rank, now(), (stream, text))])
        elif text:
            self.noise.append(text)

    def _done(self, m: Member, frame: wire.Frame) -> None:
        run, (number, failure, tally, joined) = self.run, frame.meta
        if run is None or run.number != number:
            return
        if tally is not None:
            m.tally, run.communicated = tally, True
        m.failure, m.joined, m.finished = failure, joined, True
        run.bodies[m.rank] = frame.body
        run.returned += 1
        if self.busy_until_recovered:  # only a recovery waits for this
            with self.lock:
                self.changed.notify_all()
        if failure is not None:
            self.trouble(run, Trouble("failed"))
        elif run.returned == self.size:  # what a rank printed was in its pipe before it said that it is done
            self.hub.later(lambda: self._all_returned(run))

    def _all_returned(self, run: Run) -> None:
        if run is not self.run or self.busy_until_recovered:
            return
        tallies = {m.rank: m.tally for m in self.members if run.communicated}
        if lines := watchdog.out_of_step(tallies):
            return self.trouble(run, Trouble("out of step", tuple(lines)))
        if not all(m.joined for m in self.members):  # the function destroyed the process group, as scripts do at their end
            return self.trouble(run, Trouble("left"))
        if run.communicated:
            lines = watchdog.unclaimed(tallies)
            run.notes += [line for line in lines if line not in self.left_over]
            self.left_over = lines
        if self.left_over and not run.keeps_messages:  # they would reach the next run, which did not ask for them
            return self.trouble(run, Trouble("left"))
        self.run = None
        run.finish()

    def died(self, m: Member) -> None:
        with self.lock:
            m.died = now()
            m.state, m.last_words = "dead", self.slots.last_words(m.rank)
            self.changed.notify_all()
        if self.run is not None and not m.killed:
            self.trouble(self.run, Trouble("died"))
        if self.closed and not any(other.alive for other in self.members):
            self.slots.close()

    # ---- looking after a run (reader thread)

    def trouble(self, run: Run, what: Trouble) -> None:
        """The first trouble of a run starts its recovery; the recovery sees the others."""
        with self.lock:
            if run is not self.run or run.done or self.busy_until_recovered or self.closed:
                return
            self.busy_until_recovered = True
        if not run.told:  # stopped before any rank heard of it
            for m in self.members:
                m.finished = True
        threading.Thread(target=recovery.recover, args=(self, run, what), name="minipar-recovery", daemon=True).start()

    def tick(self) -> None:
        run = self.run
        if run is None or self.busy_until_recovered:
            return
        if run.timeout is not None and now() - run.started > run.timeout:
            return self.trouble(run, Trouble("timeout"))
        lines = self._suspect.look(self)
        if lines:
            self.trouble(run, Trouble("stuck", tuple(lines)))

    def ask(self) -> int:
        """Ask the guard thread of every living rank for its stack and its ledger; the answers come to ``Member.answer``."""
        number = next(self._asks)
        for m in self.members:
            if m.alive:
                m.guard.send(wire.ASK, number)
        return number

    def answers(self, number: int) -> dict[int, dict[str, Any]]:
        return {m.rank: m.answer for m in self.members if m.answer is not None and m.answer["ask"] == number}

    def states(self) -> list[RankState]:
        """Any thread."""
        with self.lock:
            return [self._state(m) for m in self.members]

    def _state(self, m: Member) -> RankState:
        alive = m.alive and not self.closed
        return self.slots.read(m.rank, m.pid) if alive else RankState(m.rank, STATES[DEAD], m.died, pid=m.pid)

"""Whatever goes wrong on a rank ends in an error that says which rank, which line, what to do; and in ranks that work again."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed as dist

from course import Ranks
from course.labs import work as labs_work
from course.ranks import RankDied, RankError, RanksStopped, RanksTimeout, recovery
from course.ranks.errors import frame_lines
from course.ranks.slots import Where
from minipar.comm import pending
from tests.ranks.moments import here, until, until_all_are_here, until_waiting
from tests.ranks.totals import total

N = 4


@pytest.fixture
def pool(ranks):
    """Four ranks that must be idle and at work again after the test."""
    pool = ranks(N)
    yield pool
    assert pool.run(total) == [N] * N
    assert {s.state for s in pool.states()} == {"idle"}


# ---- a rank raises


def test_the_first_failing_rank_and_its_line_are_named(pool):
    def work():
        if dist.get_rank() == 2:
            until_waiting(0, 1, 3)
            raise ValueError("too long")
        dist.all_reduce(torch.ones(2))

    with pytest.raises(RankError) as caught:
        pool.run(work)
    text = str(caught.value)
    assert text.startswith("rank 2 raised ValueError: too long")
    assert 'raise ValueError("too long")' in text
    assert "0 waited in all_reduce" in text
    assert "course/ranks" not in text
    assert isinstance(caught.value.original, ValueError)
    assert caught.value.rank == 2


def test_library_frames_are_folded(pool):
    def work():
        return torch.nn.Linear(2, 2)(torch.ones(3))

    with pytest.raises(RankError, match=r"library frames, the last forward in torch/nn/modules/linear\.py"):
        pool.run(work)


def test_one_library_frame_is_told_as_one():
    user, library = Where("<%%ranks 1>", 3, "work"), Where(torch.__file__, 7, "load")
    assert "  (1 library frame, load in torch/__init__.py:7)" in frame_lines((user, library))
    assert "  (2 library frames, the last load in torch/__init__.py:7)" in frame_lines((user, library, library))


def test_a_rank_of_a_lab_that_waits_is_told_at_the_labs_line():
    work, block = Where(labs_work.__file__, 39, "work"), Where(pending.__file__, 140, "_block")
    assert frame_lines((work, block))[0].endswith("line 39 of work.py, in work")


def test_a_cause_is_told_before_its_consequence(pool):
    def work():
        try:
            [][0]
        except IndexError as error:
            raise KeyError("no first") from error

    with pytest.raises(RankError) as caught:
        pool.run(work)
    text = str(caught.value)
    assert text.index("IndexError") < text.index("This error caused the next one") < text.index('raise KeyError("no first")')


def test_all_ranks_may_raise_and_keep_their_variables(pool):
    pool.push(kept=7)
    with pytest.raises(RankError, match=r"name 'missing' is not defined(.|\n)*keep their variables"):
        pool.run_cell("missing + 1")
    assert pool.pull("kept") == [7] * N


def test_running_ranks_keep_their_variables_when_another_raises(pool):
    def work():
        if dist.get_rank() == 1:
            raise ValueError
        while True:
            pass

    pool.push(kept=8)
    with pytest.raises(RankError, match="All ranks are idle and keep their variables"):
        pool.run(work)
    assert pool.pull("kept") == [8] * N


def test_blocked_ranks_are_started_again_and_it_is_said(pool):
    def work():
        if dist.get_rank() == 1:
            until_waiting(0, 2, 3)
            raise ValueError
        dist.barrier()

    pool.push(kept=9)
    with pytest.raises(RankError, match=r"ranks 0, 2 and 3 were started again: variables there are gone; rank 1 keeps its own"):
        pool.run(work)
    with pytest.raises(RankError, match="no %%ranks cell has set a variable 'kept'"):
        pool.pull("kept")


# ---- a rank dies


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_rank_is_named_with_its_signal(pool, number):
    def work():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), number)
        dist.all_reduce(torch.ones(2))

    with pytest.raises(RankDied, match=f"rank 1 was killed by {number.name}") as caught:
        pool.run(work)
    assert (caught.value.rank, caught.value.signal) == (1, number)


def test_a_rank_that_leaves_by_os_exit_is_named(pool):
    def work():
        if dist.get_rank() == 3:
            os._exit(5)
        time.sleep(600)

    with pytest.raises(RankDied, match="rank 3 ended by itself with exit code 5"):
        pool.run(work)


def test_a_rank_killed_from_outside_is_named(pool):
    run = pool.start(time.sleep, 600)
    os.kill(pool.pids[2], signal.SIGKILL)
    with pytest.raises(RankDied, match="rank 2 was killed by SIGKILL"):
        run.result()


def test_a_rank_that_died_between_two_runs_is_replaced_and_it_is_said(pool, capsys):
    os.kill(pool.pids[0], signal.SIGKILL)
    until(lambda: pool.states()[0].state == "dead")
    assert pool.run(dist.get_rank) == list(range(N))
    assert "note: rank 0 was killed by SIGKILL between two runs" in capsys.readouterr().err


def test_ranks_that_are_closed_while_one_is_started_again_start_no_run(monkeypatch):
    pool = Ranks(1)
    os.kill(pool.pids[0], signal.SIGKILL)
    until(lambda: pool.states()[0].state == "dead")
    real = recovery.revive

    def then_close(*args):
        told = real(*args)
        pool.close()
        return told

    monkeypatch.setattr(recovery, "revive", then_close)
    with pytest.raises(RuntimeError, match="these ranks are closed"):
        pool.start(int)


def test_ranks_are_refused_in_a_process_forked_from_the_kernel(pool):
    child = os.fork()
    if not child:
        try:
            signal.alarm(30)
            pool.run(int)
        except RuntimeError as error:
            os._exit(7 if "make new ones" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_fork_server_may_die_too(pool):
    run = pool.start(time.sleep, 600)
    os.kill(pool._pool.server._process.pid, signal.SIGKILL)
    with pytest.raises(RankDied):
        run.result()


# ---- sys.exit, and things that cannot travel


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_that_the_function_forks_ends_with_it_and_answers_for_nobody(pool, fails, capsys):
    def fork():
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        if fails:
            raise ValueError("only in the child")

    assert pool.run(fork) == [256 * fails] * pool.n
    assert pool.run(dist.get_rank) == list(range(pool.n))
    assert ("forked by rank 0: ValueError: only in the child" in capsys.readouterr().err) is fails


def test_a_function_that_removes_the_folder_it_stands_in_harms_no_later_run(pool):
    def work():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)

    pids = pool.pids
    pool.run(work)
    assert pool.run(os.getcwd) == [os.getcwd()] * pool.n
    assert pool.pids == pids


def test_sys_exit_without_a_code_is_a_return(pool):
    assert pool.run(sys.exit) == [None] * N


def test_sys_exit_with_a_code_is_an_error(pool):
    def work():
        sys.exit("no data")

    with pytest.raises(RankError, match=r"called sys\.exit .*no data"):
        pool.run(work)


def test_an_argument_that_cannot_be_pickled_is_named(pool):
    with pytest.raises(TypeError, match=r"argument 2 \(lock\) cannot be sent to the ranks"):
        pool.run(lambda x, y: None, 1, threading.Lock())


def test_a_variable_that_cannot_be_pickled_is_named(pool):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="the variable 'lock'"):
        pool.run(lambda: lock)


def test_ranks_used_in_a_rank_are_refused(pool):
    with pytest.raises(TypeError, match=r"Ranks cannot be sent to a rank"):
        pool.run(lambda: pool.n)


def test_a_result_that_cannot_be_pickled_is_explained(pool):
    with pytest.raises(RankError, match=r"what the function returned cannot be sent back .*generator"):
        pool.run(lambda: (i for i in range(3)))


class Awkward(Exception):  # noqa: N818
    """Cannot be pickled, and neither can it be made again from its arguments."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.lock = threading.Lock()


def test_an_exception_that_cannot_travel_is_told_in_text(pool):
    def work():
        raise Awkward(1, 2)

    with pytest.raises(RankError, match="Awkward: 1 and 2") as caught:
        pool.run(work)
    assert caught.value.original is None


def test_a_thing_that_is_no_function_is_refused(pool):
    with pytest.raises(TypeError, match=r"ranks\.run\(fn, x\), not ranks\.run\(fn\(x\)\)"):
        pool.run(3)


# ---- stop and timeout


def test_stop_leaves_idle_ranks_with_their_variables(pool):
    def forever():
        while True:
            pass

    pool.push(kept=3)
    run = pool.start(forever)
    run.stop()
    with pytest.raises(RanksStopped, match="forever was stopped"):
        run.result()
    assert pool.pull("kept") == [3] * N


def test_stop_ends_a_function_that_swallows_interrupts(pool):
    def stubborn():
        signal.signal(signal.SIGINT, lambda *_: None)
        here()
        while True:
            time.sleep(1)

    run = pool.start(stubborn)
    until_all_are_here(run)
    run.stop()
    with pytest.raises(RanksStopped, match="were started again: variables there are gone"):
        run.result()


def test_stop_with_an_unfinished_asynchronous_call(pool):
    def half():
        if dist.get_rank() == 0:
            work = dist.all_reduce(torch.ones(2), async_op=True)
        here()
        time.sleep(600)
        return work

    run = pool.start(half)
    until_all_are_here(run)
    run.stop()
    with pytest.raises(RanksStopped):
        run.result()


def test_timeout_shows_where_every_rank_was(pool):
    def uneven():
        if dist.get_rank() == 0:
            time.sleep(600)  # here
        dist.barrier()

    run = pool.start(uneven, timeout=1000)
    until(lambda: [s.state for s in pool.states()] == ["running", *["waiting"] * (N - 1)])
    run.timeout = 0.1  # is over now
    with pytest.raises(RanksTimeout) as caught:
        run.result()
    text = str(caught.value)
    assert "did not end within its timeout of 0.1 s" in text
    assert "time.sleep(600)  # here" in text
    assert text.count("waited in barrier") == N - 1


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "5", True])
def test_a_timeout_that_is_none_is_refused(pool, seconds):
    with pytest.raises(ValueError, match="seconds above 0"):
        pool.run(dist.get_rank, timeout=seconds)


# ---- one at a time


def test_a_second_run_is_refused_while_one_works(pool):
    run = pool.start(time.sleep, 600)
    with pytest.raises(RuntimeError, match=r"busy with sleep .*\.stop\(\)"):
        pool.run(dist.get_rank)
    run.stop()


def test_many_threads_may_ask_at_once(pool):
    outcomes = []

    def ask():
        try:
            outcomes.append(pool.run(dist.get_rank))
        except RuntimeError as error:
            outcomes.append("busy" if "busy" in str(error) else error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    assert [o for o in outcomes if o != "busy" and o != list(range(N))] == []


# ---- starting


@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (-2, ValueError), (10**6, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_an_impossible_count_is_refused(n, error):
    with pytest.raises(error, match=r"rank"):
        Ranks(n)


def test_unknown_devices_and_hardware_are_refused():
    with pytest.raises(ValueError, match="device is 'auto', 'cpu' or 'cuda'"):
        Ranks(2, device="tpu")
    with pytest.raises(ValueError, match="choose one of"):
        Ranks(2, hardware="abacus")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match="PyTorch sees no GPU"):
        Ranks(2, device="cuda")


def test_ranks_inside_ranks_are_refused(pool):
    with pytest.raises(RankError, match=r"is rank . of 4 already, and ranks cannot start ranks"):
        pool.run(lambda: Ranks(2))


def test_a_second_init_is_refused_and_a_destroy_is_mended(pool):
    with pytest.raises(RankError, match="leave init_process_group out"):
        pool.run(lambda: dist.init_process_group("gloo"))
    assert pool.run(lambda: dist.destroy_process_group()) == [None] * N


def test_closed_ranks_say_so():
    with Ranks(1) as pool:
        pass
    with pytest.raises(RuntimeError, match="these ranks are closed"):
        pool.run(dist.get_rank)

"""Ranks in a real Jupyter kernel: interrupts, restarts, subshells, and what the learner sees."""

from __future__ import annotations

import contextlib
import re

import psutil
import pytest

from tests.ranks.moments import living
from tests.ranks.notebook import Notebook, gone, notebook

pytest.importorskip("ipykernel")


@pytest.fixture(scope="module")
def book():
    with notebook() as book:
        assert not book.run("from course import Ranks\nimport time, os, torch, torch.distributed as dist").error
        assert not book.run("ranks = Ranks(3)").error
        yield book


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_an_error_shows_the_learners_line_and_none_of_ours(book):
    shown = book.run("def f():\n    x = 1\n    return x / 0\n\nranks.run(f)")
    text = _plain(shown.traceback)
    assert shown.error == "RankError"
    assert "raised ZeroDivisionError: division by zero" in text
    assert re.search(r"line 3 of Cell In ?\[\d+\], in f\n +return x / 0", text)
    assert "course/ranks" not in text
    assert book.run("ranks.run(dist.get_rank)").result == "[0, 1, 2]"


def test_a_hang_names_the_line_of_the_cell(book):
    shown = book.run("def g():\n    if dist.get_rank() != 1:\n        dist.barrier()  # mark\n\nranks.run(g)")
    assert shown.error == "RanksStuck"
    assert re.search(
        r"ranks 0 and 2 wait in barrier\(\), line 3 of Cell In ?\[\d+\]\n +dist.barrier\(\)  # mark", _plain(shown.traceback)
    )


def test_an_interrupt_of_python_code_keeps_the_variables(book):
    book.run("ranks.push(kept=5)")
    request = book.post("ranks.run(lambda: [0 for _ in iter(int, 1)])")
    _until(book, "running", "running", "running")
    book.interrupt()
    shown = book.collect(request)
    assert shown.error == "RanksInterrupted"
    assert "All ranks are idle and keep their variables" in _plain(shown.traceback)
    assert book.run("ranks.pull('kept')").result == "[5, 5, 5]"


def test_an_interrupt_of_a_blocked_call_starts_the_rank_again(book):
    book.run("ranks.push(kept=6)")
    request = book.post(
        "def h():\n    if dist.get_rank() == 0:\n        while True: pass\n    dist.all_reduce(torch.ones(1))\nranks.run(h)"
    )
    _until(book, "running", "waiting", "waiting")
    book.interrupt()
    shown = book.collect(request)
    assert shown.error == "RanksInterrupted"
    assert "ranks 1 and 2 were started again: variables there are gone; rank 0 keeps its own" in _plain(shown.traceback)
    assert book.run("ranks.run(dist.get_rank)").result == "[0, 1, 2]"


def test_an_interrupt_also_ends_a_run_in_the_background(book):
    book.run("run = ranks.start(time.sleep, 60)")
    book.interrupt()
    book.wait_for("run.done")
    assert book.run("run.result()").error == "RanksStopped"
    assert book.run("ranks.run(dist.get_rank)").result == "[0, 1, 2]"


def test_an_interrupt_of_idle_ranks_changes_nothing(book):
    book.run("ranks.push(kept=7)")
    book.interrupt()
    assert not book.run("Ranks(1).close()").error  # the fork server has told of the interrupt before it answers this
    assert book.run("ranks.pull('kept')").result == "[7, 7, 7]"


def test_cells_keep_their_state_and_print_by_rank(book):
    assert not book.run("%%ranks\nx = rank * 10\ndef twice(): return 2 * x").error
    shown = book.run("%%ranks\nprint('x is', x)\ntwice()")
    assert sorted(shown.out.splitlines()) == sorted(f"[rank {r}] {t}" for r in range(3) for t in (f"x is {r * 10}", str(r * 20)))
    assert book.run("ranks.pull('x')").result == "[0, 10, 20]"


def test_a_cell_that_fails_shows_its_own_line(book):
    shown = book.run("%%ranks\ny = 1\nif rank == 2:\n    oops")
    text = _plain(shown.traceback)
    assert shown.error == "RankError"
    assert "rank 2 raised NameError" in text
    assert re.search(r"line 3 of the %%ranks cell.*\n +oops", text)


def test_a_syntax_error_in_a_cell_never_reaches_the_ranks(book):
    assert book.run("%%ranks\ndef (:").error == "SyntaxError"


def test_cells_say_how_to_be_used(book):
    assert "%%ranks [number of ranks]" in _plain(book.run("%%ranks many\n1").traceback)


def test_a_cell_may_have_a_pool_of_its_own(book):
    shown = book.run("%%ranks 2\nworld_size")
    assert "2 ranks started for %%ranks cells" in shown.out
    assert sorted(book.run("%%ranks 2\nworld_size").out.splitlines()) == ["[rank 0] 2", "[rank 1] 2"]
    assert book.run("ranks.run(dist.get_rank)").result == "[0, 1, 2]"


def test_prints_come_under_the_cell_that_waits(book):
    shown = book.run("ranks.run(lambda: print('here'))")
    assert shown.out.count("here") == 3


def test_running_the_cell_again_replaces_the_ranks(book):
    old = set(eval(book.run("ranks.pids").result))
    book.run("ranks = Ranks(3); len(ranks.pids)")
    new = set(eval(book.run("ranks.pids").result))
    assert not old & new
    assert gone(living(list(old)))
    assert book.run("ranks.run(dist.get_rank)").result == "[0, 1, 2]"


def test_a_subshell_may_use_the_ranks_while_a_cell_runs(book):
    subshell = book.subshell()
    request = book.post("for _ in range(400): time.sleep(0.01)")
    shown = book.run("ranks.run(dist.get_rank)", subshell)
    assert shown.result == "[0, 1, 2]"
    book.collect(request)


def test_a_subshell_is_refused_while_a_cell_uses_the_ranks_and_may_stop_it(book):
    subshell = book.subshell()
    request = book.post("ranks.run(time.sleep, 60)")
    _until(book, "running", "running", "running")
    refused = book.run("ranks.run(dist.get_rank)", subshell)
    assert refused.error == "RuntimeError"
    assert "busy with sleep" in refused.traceback
    assert not book.run("ranks.last_run.stop()", subshell).error
    assert book.collect(request).error == "RanksStopped"
    assert book.run("ranks.run(dist.get_rank)").result == "[0, 1, 2]"


def test_an_interrupt_reaches_a_run_that_a_subshell_waits_for(book):
    subshell = book.subshell()
    request = book.post("ranks.run(time.sleep, 60)", subshell)
    _until(book, "running", "running", "running")
    book.interrupt()
    assert book.collect(request).error == "RanksStopped"
    assert book.run("ranks.run(dist.get_rank)").result == "[0, 1, 2]"


def _until(book: Notebook, *states: str) -> None:
    """Wait until the ranks are in these states. A subshell looks: a cell may hold the kernel's main thread."""
    book.wait_for(f"tuple(s.state for s in ranks.states()) == {states}", book.watcher)


# ---- nothing is left behind


@pytest.mark.parametrize("end", ["kill", "shutdown", "restart"])
def test_no_process_outlives_its_kernel_whether_idle_or_blocked(end):
    with notebook() as book:
        assert not book.run("from course import Ranks\nidle, blocked = Ranks(2), Ranks(2)").error
        book.run(
            "import torch, torch.distributed as dist, time\n"
            "def f():\n    if dist.get_rank(): dist.all_reduce(torch.ones(1))\n    time.sleep(600)\n"
            "run = blocked.start(f)"
        )
        book.wait_for("blocked.states()[1].state == 'waiting'")
        processes = book.descendants()
        assert len(processes) >= 5
        if end == "kill":
            book.kill()
        elif end == "shutdown":
            book.manager.shutdown_kernel()
        else:
            book.manager.restart_kernel()
        assert gone(processes)


def test_no_process_outlives_a_killed_kernel_whose_own_children_live_on():
    with notebook() as book:
        assert not book.run("from course import Ranks\nimport os, time\nranks = Ranks(2)").error
        child = int(book.run("pid = os.fork()\nif pid == 0:\n    time.sleep(60)\n    os._exit(0)\npid").result)
        ranks = [p for p in book.descendants() if p.pid != child]
        book.kill()
        assert gone(ranks)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(child).kill()

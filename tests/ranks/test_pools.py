"""Pools come and go, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time

import psutil
import torch
import torch.distributed as dist

from course import Ranks
from course.ranks import server, strays
from tests.ranks.moments import living, until
from tests.ranks.notebook import gone
from tests.ranks.totals import total


def test_fifty_restarts_leave_no_process_descriptor_or_thread(ranks):
    ranks(1)  # the fork server and the reader thread are there
    me = psutil.Process()
    with Ranks(2):
        pass
    folders = set(strays.home().glob("pool-*"))
    now = lambda: (me.num_fds(), threading.active_count(), len(me.children(recursive=True)))  # noqa: E731
    before = _settled(now)
    for _ in range(50):
        with Ranks(2) as pool:
            assert pool.run(total) == [2, 2]
    until(lambda: all(a <= b for a, b in zip(now(), before, strict=True)), f"{before} descriptors, threads and processes")
    assert set(strays.home().glob("pool-*")) == folders


def _settled(count):
    """Descriptors are closed a moment later, by other threads: what ``count`` says when it says the same for a while."""
    last = None
    while last != (last := count()):
        time.sleep(0.2)
    return last


def test_fifty_recoveries_in_one_pool_leak_nothing(ranks):
    pool = ranks(2)

    def fail():
        if dist.get_rank():
            raise ValueError
        dist.barrier()

    def once():
        try:
            pool.run(fail)
        except RuntimeError:
            return
        raise AssertionError("the failure was not told")

    once()
    me, survivor = psutil.Process(), psutil.Process(pool.pids[1])
    now = lambda: (me.num_fds(), survivor.num_fds())  # noqa: E731
    before = _settled(now)
    for _ in range(10):
        once()
    assert pool.pids[1] == survivor.pid
    until(lambda: all(a <= b for a, b in zip(now(), before, strict=True)), f"{before} descriptors")
    assert pool.run(total) == [2, 2]


def test_dropped_ranks_end():
    pool = Ranks(2)
    processes = [psutil.Process(pid) for pid in pool.pids]
    assert pool.run(total) == [2, 2]
    del pool
    gc.collect()
    assert gone(processes)


def test_leaving_the_block_ends_the_ranks_even_while_they_work():
    with Ranks(2) as pool:
        processes = [psutil.Process(pid) for pid in pool.pids]
        run = pool.start(time.sleep, 600)
    assert gone(processes)
    until(lambda: run.done)


def test_what_a_rank_started_ends_with_it():
    def parent():
        return subprocess.Popen(["sleep", "600"]).pid

    with Ranks(1) as pool:
        grandchild = psutil.Process(pool.run(parent)[0])
    assert gone([grandchild])


def test_two_pools_work_at_once():
    with Ranks(2) as a, Ranks(3) as b:
        first = a.start(total)
        assert b.run(total) == [3, 3, 3]
        assert first.result() == [2, 2]


def test_two_kernels_work_at_once(ranks):
    code = (
        "from course import Ranks\n"
        "with Ranks(2) as r:\n"
        "    import torch.distributed as dist\n"
        "    for _ in range(20): assert r.run(dist.get_rank) == [0, 1]\n"
        "print('well')"
    )
    others = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for _ in range(20):
        assert ranks(2).run(total) == [2, 2]
    assert [other.communicate(timeout=100)[0] for other in others] == ["well\n", "well\n"]


def test_a_script_that_ends_leaves_nothing(tmp_path):
    code = (
        "from course import Ranks\n"
        "import os, time\n"
        "r = Ranks(2)\n"
        "run = r.start(time.sleep, 600)\n"
        "from course.ranks import strays\n"
        "print(*r.pids, strays.home())\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True).stdout
    *pids, home = out.split()
    assert gone(living([int(pid) for pid in pids]))
    assert not os.path.exists(home)


def test_ranks_see_the_notebooks_folder_modules_and_environment(ranks, tmp_path, monkeypatch):
    (tmp_path / "helper_of_this_test.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def work():
        import helper_of_this_test

        return helper_of_this_test.ANSWER, os.getcwd()

    assert ranks(2).run(work) == [(42, str(tmp_path))] * 2


def test_a_folder_and_a_path_that_a_function_changed_are_the_kernels_again_in_the_next_run(ranks, tmp_path):
    def move():
        os.chdir(tmp_path)
        sys.path.append(str(tmp_path))

    def here():
        return os.getcwd(), sys.path

    pool = ranks(2)
    before = pool.run(here)
    pool.run(move)
    assert pool.run(here) == before == [(os.getcwd(), sys.path)] * 2


def test_ranks_follow_the_kernels_variables_also_when_one_is_taken_away(ranks, monkeypatch):
    ranks(1)  # the fork server is there, and has what the kernel had
    monkeypatch.setenv("SET_LATER_BY_THIS_TEST", "1")
    monkeypatch.delenv("PATH")
    with Ranks(1) as pool:
        assert pool.run(lambda: [os.environ.get(name) for name in ("SET_LATER_BY_THIS_TEST", "PATH", "TORCH_CPP_LOG_LEVEL")]) == [
            ["1", None, "ERROR"]
        ]


def test_no_module_of_the_notebooks_folder_and_no_path_object_keeps_ranks_from_starting(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError\n")
    code = "import json, sys, pathlib; sys.path[:0] = ['', pathlib.Path('..')]; from course import Ranks; print(Ranks(1).run(int))"
    command = [sys.executable, "-P", "-c", code]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True).stdout == "[0]\n"


def test_a_folder_that_was_removed_keeps_no_fork_server_from_starting(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert server._clean_path()[-1] == "/"


def test_a_fork_server_whose_kernel_has_ended_already_does_not_load_torch_to_the_end(tmp_path):
    (tmp_path / "endless.py").write_text("import time\nwhile True: time.sleep(0.1)\n")
    code = (
        "import socket; from course.ranks import zygote; zygote.PRELOAD = ('endless',); kernels, own = socket.socketpair(); "
        "kernels.close(); zygote.Zygote(own).preload()"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, cwd=tmp_path, timeout=100).returncode == 1


def test_every_socket_is_on_loopback():
    with Ranks(3) as pool:
        pool.run(total)
        for process in [psutil.Process(pid) for pid in pool.pids] + [psutil.Process(pool._pool.server._process.pid)]:
            for connection in process.net_connections(kind="inet"):
                assert connection.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1"), connection


def test_the_fork_server_never_touches_cuda():
    """A forked process cannot use CUDA once its parent has."""
    with Ranks(1) as pool:
        assert pool.run(lambda: (torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())) == [(False, False)]


def test_no_socket_of_the_kernel_is_inherited_by_ranks(ranks):
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        with Ranks(1) as pool:
            connections = psutil.Process(pool.pids[0]).net_connections(kind="inet")
        assert listener.getsockname()[1] not in [c.laddr.port for c in connections]
    finally:
        listener.close()


def test_interrupting_idle_ranks_is_harmless(ranks):
    import signal

    pool = ranks(2)
    for pid in pool.pids:
        os.kill(pid, signal.SIGINT)
    assert pool.run(total) == [2, 2]

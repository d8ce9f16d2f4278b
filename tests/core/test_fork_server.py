"""Processes that start at once: are they fresh, are they the caller's, and does nothing of them remain?

The programs load no torch, so that a start takes a moment. `test_processes` asks the same of ranks in a group.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpbook.core.fork_server.starter import METHOD, SHARED, Starter

pytestmark = pytest.mark.processes

linux = pytest.mark.skipif(METHOD != "fork", reason="elsewhere nothing is forked from a server")

PROGRAM = """
import ctypes, json, multiprocessing, os, random, signal, subprocess, sys, time
from pathlib import Path

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DPBOOK_TOLD", "PYTHONHASHSEED"]

def main(folder):
    rank = int(os.environ["RANK"])
    if os.environ.get("DPBOOK_DO") == "speak":
        print("from Python")
        os.write(1, b"from below\\n")
        ctypes.CDLL(None).puts(b"from C")
        ctypes.CDLL(None).fflush(None)
        print("a warning", file=sys.stderr)
    if os.environ.get("DPBOOK_DO") == "leave a child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(folder, f"child-{rank}").write_text(str(child.pid))
    if os.environ.get("DPBOOK_DO") == "have a pool":
        multiprocessing.set_start_method("fork")
        with multiprocessing.Pool(1) as pool:
            return pool.map(abs, [-rank])[0]
    if os.environ.get("DPBOOK_DO") == "hang":
        partial = Path(folder, f"beginning-{rank}")
        partial.write_text(str(os.getpid()))
        partial.rename(Path(folder, f"begun-{rank}"))
        time.sleep(60)
    if os.environ.get("DPBOOK_DO") == "wait for the other run":
        Path(folder, f"begun-{rank}").touch()
        while not Path(os.environ["DPBOOK_TOLD"], f"begun-{rank}").exists():
            time.sleep(0.02)
        return 0
    if os.environ.get("DPBOOK_DO") == "fail" and rank == 2:
        return 5
    if os.environ.get("DPBOOK_DO") == "fail":
        time.sleep(60)
    state = {
        "environment": [os.environ.get(name) for name in NAMES], "cwd": os.getcwd(), "path": sys.path,
        "process": os.getpid(), "hash": hash("text"), "random": random.random(),
        "more": "colorsys" in sys.modules,
    }
    Path(folder, f"state-{rank}").write_text(json.dumps(state))
    return 0
"""


@pytest.fixture(scope="module", params=[METHOD, "spawn"] if METHOD != "spawn" else ["spawn"])
def starter(request):
    starter = Starter(method=request.param)
    yield starter
    starter.stop()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder for one run, and beside it the program, which the module path of the caller leads to."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "starter_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def run(starter, folder, world=3, timeout=60.0, **environment):
    folder.mkdir(exist_ok=True)
    return starter.run("starter_program", folder, world, os.environ | environment, timeout)


def states(folder, world=3):
    return [json.loads((folder / f"state-{rank}").read_text()) for rank in range(world)]


def is_running(process):
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # empty where it has ended and nobody has asked how
    except OSError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_ranks_find_what_torchrun_would_tell_them_and_what_the_caller_has_at_that_moment(
    starter, folder, tmp_path, monkeypatch
):
    assert run(starter, folder, DPBOOK_TOLD="first") == (dict.fromkeys(range(3), 0), "")
    first = states(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    run(starter, folder)
    second = states(folder)
    for told, found in ("first", first), (None, second):
        expected = [[str(rank), "3", str(rank), "3", told] for rank in range(3)]
        assert [state["environment"][:5] for state in found] == expected
    assert [state["path"] for state in second] == [sys.path] * 3
    assert [state["cwd"] for state in second] == [str(tmp_path)] * 3 != [state["cwd"] for state in first]
    assert len({state["process"] for state in first + second}) == 6
    assert len({state["random"] for state in first + second}) == 6


def test_what_is_printed_is_found_where_torchrun_would_put_it(starter, folder):
    run(starter, folder, DPBOOK_DO="speak")
    for rank in range(3):
        logs = folder / "attempt_0" / str(rank)
        assert sorted((logs / "stdout.log").read_text().splitlines()) == ["from C", "from Python", "from below"]
        assert (logs / "stderr.log").read_text() == "a warning\n"


def test_when_one_fails_the_others_are_ended_and_only_its_status_is_told(starter, folder):
    assert run(starter, folder, DPBOOK_DO="fail") == ({2: 5}, "")


def test_when_the_time_is_up_all_are_ended(starter, folder):
    assert run(starter, folder, timeout=2.0, DPBOOK_DO="hang") == ({}, "")


def test_a_program_that_cannot_be_loaded_is_the_failure_of_its_ranks_who_say_why(starter, folder):
    exits, _ = starter.run("no_such_program", folder, 1, os.environ, 60.0)
    assert exits == {0: 1}
    assert "No module named 'no_such_program'" in (folder / "attempt_0" / "0" / "stderr.log").read_text()


def test_calls_of_several_threads_run_at_the_same_time(starter, tmp_path):
    """Each waits until the other has begun."""

    def run_beside(folder, other):
        return run(starter, tmp_path / folder, 2, DPBOOK_DO="wait for the other run", DPBOOK_TOLD=str(tmp_path / other))

    with ThreadPoolExecutor() as pool:
        exits = [exits for exits, _ in pool.map(run_beside, ("one", "other"), ("other", "one"))]
    assert exits == [{0: 0, 1: 0}] * 2


def test_the_callers_own_multiprocessing_goes_on_and_a_rank_may_have_its_own(starter, folder):
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]
        assert run(starter, folder, 1, DPBOOK_DO="have a pool") == ({0: 0}, "")
        assert pool.map(abs, [-1, 2]) == [1, 2]
    assert multiprocessing.active_children() == []


@linux
def test_what_a_rank_has_started_goes_with_it(starter, folder):
    run(starter, folder, DPBOOK_DO="leave a child")
    children = [int((folder / f"child-{rank}").read_text()) for rank in range(3)]
    assert wait_until(lambda: not any(map(is_running, children)))


# The server


@pytest.fixture
def forking(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    starter = Starter()
    yield starter
    starter.stop()


@linux
def test_what_is_read_when_a_program_is_loaded_takes_effect_although_the_server_has_been_loaded(forking, tmp_path):
    """A call that is running meanwhile goes on."""
    with ThreadPoolExecutor() as pool:
        waits = {"DPBOOK_DO": "wait for the other run", "DPBOOK_TOLD": str(tmp_path / "last")}
        slow = pool.submit(run, forking, tmp_path / "slow", 1, **waits)
        assert wait_until((tmp_path / "slow" / "begun-0").exists)
        for folder, seed in ("one", "1"), ("two", "2"), ("again", "2"):
            run(forking, tmp_path / folder, 1, PYTHONHASHSEED=seed)
        assert not slow.done()
        (tmp_path / "last").mkdir()
        (tmp_path / "last" / "begun-0").touch()
        assert slow.result() == ({0: 0}, "")
    one, two, again = (states(tmp_path / folder, 1)[0]["hash"] for folder in ("one", "two", "again"))
    assert one != two == again


@linux
def test_a_variable_that_torch_sets_when_its_compiler_is_loaded_starts_no_other_server(forking, tmp_path):
    servers = []
    for folder, environment in ("before", {}), ("after", {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}):
        run(forking, tmp_path / folder, 1, **environment)
        servers.append(forking._server.process.pid)
    assert servers[0] == servers[1]


@linux
def test_a_server_that_was_killed_takes_its_ranks_along_and_is_replaced(forking, folder):
    def kill():
        assert wait_until((folder / "begun-2").exists)
        os.kill(forking._server.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert run(forking, folder, DPBOOK_DO="hang")[0] == {}
    killer.join()
    assert run(forking, folder)[0] == dict.fromkeys(range(3), 0)


def start_in_fork(starter, folder, sender):
    sender.send((run(starter, folder), starter._server.process.pid))


@linux
def test_a_forked_process_starts_a_server_of_its_own_which_ends_with_it(forking, folder, tmp_path):
    run(forking, folder)
    receiver, sender = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=start_in_fork, args=(forking, tmp_path / "forked", sender))
    process.start()
    result, server = receiver.recv()
    process.join()
    assert result == (dict.fromkeys(range(3), 0), "")
    assert server != forking._server.process.pid
    assert wait_until(lambda: not is_running(server))
    assert run(forking, folder)[0] == dict.fromkeys(range(3), 0)


# A server for several processes


@pytest.fixture
def told(forking, monkeypatch):
    """As in a process that has been told of the server that ``forking`` shares."""
    with forking.share(os.environ, "colorsys") as variable:
        assert forking._server is None  # nobody has asked yet
        monkeypatch.setenv(SHARED, variable[SHARED])
        yield


@linux
def test_all_who_are_told_of_a_server_use_it_and_each_is_told_its_own(told, forking, tmp_path):
    others = Starter(), Starter()
    for number, other in enumerate(others):
        assert run(other, tmp_path / str(number), DPBOOK_TOLD=str(number)) == (dict.fromkeys(range(3), 0), "")
        found = states(tmp_path / str(number))
        assert [(state["environment"][4], state["more"]) for state in found] == [(str(number), True)] * 3
    assert [other._server for other in others] == [None, None]
    assert forking._server.process.poll() is None


@linux
@pytest.mark.parametrize("preload", [(), ("colorsys",)], ids=["other settings", "other modules"])
def test_who_needs_a_server_loaded_otherwise_starts_its_own(told, forking, folder, preload):
    other = Starter(*preload)
    run(other, folder, 1, PYTHONHASHSEED="1" if preload else "2")
    state = states(folder, 1)[0]
    assert (state["environment"][5], state["more"]) == (("1", True) if preload else ("2", False))
    assert forking._server is None
    other.stop()


@linux
@pytest.mark.parametrize("change", ["program", "user"])
def test_another_python_and_another_user_have_no_server_in_common(told, forking, folder, monkeypatch, change):
    other = Starter()
    if change == "program":
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert other._shared_launcher(os.environ) is None


@linux
def test_where_a_shared_server_cannot_be_started_everyone_starts_its_own(told, forking, folder, tmp_path, monkeypatch):
    """Only the one who asked first has to be told of it."""
    with monkeypatch.context() as patch:
        patch.setattr(forking, "_serving", lambda environment: os.stat(folder / "none"))
        assert run(Starter(), folder, 1)[0] == {}
    other = Starter()
    assert run(other, tmp_path / "own", 1)[0] == {0: 0}
    assert other._server is not None
    other.stop()


CALLER = """
import os, sys
from pathlib import Path
from dpbook.core.fork_server.starter import Starter

sys.path.insert(0, sys.argv[2])
Starter().run("starter_program", Path(sys.argv[1]), 2, os.environ, 60.0)
"""


@linux
def test_a_caller_that_is_killed_takes_its_ranks_along_and_leaves_the_server_to_the_others(told, forking, folder):
    command = [sys.executable, "-c", CALLER, str(folder), str(folder.parent / "modules")]
    caller = subprocess.Popen(command, env=os.environ | {"DPBOOK_DO": "hang"})
    assert wait_until(lambda: all((folder / f"begun-{rank}").exists() for rank in range(2)))
    ranks = [int((folder / f"begun-{rank}").read_text()) for rank in range(2)]
    assert all(map(is_running, ranks))
    caller.kill()
    caller.wait()
    assert wait_until(lambda: not any(map(is_running, ranks)))
    assert forking._server.process.poll() is None


@linux
def test_when_a_server_is_no_longer_shared_it_ends_with_its_ranks_and_who_was_told_of_it_starts_its_own(
    forking, folder, tmp_path, monkeypatch
):
    monkeypatch.delenv(SHARED, raising=False)  # of the run that this test is part of
    with ThreadPoolExecutor() as pool:
        with forking.share(os.environ) as variable:
            monkeypatch.setenv(SHARED, variable[SHARED])
            running = pool.submit(run, Starter(), folder, 2, DPBOOK_DO="hang")
            assert wait_until((folder / "begun-1").exists)
            server = forking._server.process.pid
        assert running.result() == ({}, "")
    assert not is_running(server)
    assert not Path(variable[SHARED]).exists()
    own = Starter()
    assert run(own, tmp_path / "own", 1) == ({0: 0}, "")
    assert own._server is not None
    own.stop()


@linux
def test_who_shares_a_server_with_the_settings_of_one_that_is_shared_starts_none(forking, folder, monkeypatch):
    monkeypatch.delenv(SHARED, raising=False)
    within, other = Starter(), Starter("json")
    with forking.share(os.environ) as variable:
        monkeypatch.setenv(SHARED, variable[SHARED])
        with within.share(os.environ) as same, other.share(os.environ) as another:
            assert (same, another) == ({}, variable)  # the same folder, for a server that loads something else
            assert run(within, folder, 1) == ({0: 0}, "")
            assert forking._server is not None
            assert within._server is None
            assert other.is_shared(os.environ)
        assert not other.is_shared(os.environ)
        assert within.is_shared(os.environ)

"""Are forked processes fresh, do they have the state of their caller, and does none of them remain?

The programs load no torch, so that a start is quick. `tests/ranks/test_processes.py` tests ranks in a process group.
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

from dpbook.core.fork_server.starter import SHARED_SERVERS, START_METHOD, Starter

pytestmark = pytest.mark.processes

linux = pytest.mark.skipif(START_METHOD != "fork", reason="elsewhere nothing is forked from a server")

PROGRAM = """
import ctypes, json, multiprocessing, os, random, signal, subprocess, sys, time
from pathlib import Path

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DPBOOK_TEST", "PYTHONHASHSEED"]

def main(folder):
    rank = int(os.environ["RANK"])
    if os.environ.get("DPBOOK_TASK") == "print":
        print("from Python")
        os.write(1, b"from below\\n")
        ctypes.CDLL(None).puts(b"from C")
        ctypes.CDLL(None).fflush(None)
        print("a warning", file=sys.stderr)
    if os.environ.get("DPBOOK_TASK") == "leave a child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(folder, f"child-{rank}").write_text(str(child.pid))
    if os.environ.get("DPBOOK_TASK") == "have a pool":
        multiprocessing.set_start_method("fork")
        with multiprocessing.Pool(1) as pool:
            return pool.map(abs, [-rank])[0]
    if os.environ.get("DPBOOK_TASK") == "hang":
        partial = Path(folder, f"beginning-{rank}")
        partial.write_text(str(os.getpid()))
        partial.rename(Path(folder, f"begun-{rank}"))
        time.sleep(60)
    if os.environ.get("DPBOOK_TASK") == "wait for the other run":
        Path(folder, f"begun-{rank}").touch()
        while not Path(os.environ["DPBOOK_TEST"], f"begun-{rank}").exists():
            time.sleep(0.02)
        return 0
    if os.environ.get("DPBOOK_TASK") == "fail" and rank == 2:
        return 5
    if os.environ.get("DPBOOK_TASK") == "fail":
        time.sleep(60)
    state = {
        "environment": [os.environ.get(name) for name in NAMES], "cwd": os.getcwd(), "path": sys.path,
        "process": os.getpid(), "hash": hash("text"), "random": random.random(),
        "more": "colorsys" in sys.modules,
    }
    Path(folder, f"state-{rank}").write_text(json.dumps(state))
    return 0
"""


@pytest.fixture(scope="module", params=[START_METHOD, "spawn"] if START_METHOD != "spawn" else ["spawn"])
def starter(request):
    starter = Starter(method=request.param)
    yield starter
    starter.stop()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Make a folder for one run, and a program on the module path of the caller."""
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
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # empty for a zombie
    except OSError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_ranks_have_torchruns_variables_and_the_current_state_of_the_caller(starter, folder, tmp_path, monkeypatch):
    assert run(starter, folder, DPBOOK_TEST="first") == (dict.fromkeys(range(3), 0), "")
    first = states(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    run(starter, folder)
    second = states(folder)
    for value, ranks in ("first", first), (None, second):
        expected = [[str(rank), "3", str(rank), "3", value] for rank in range(3)]
        assert [state["environment"][:5] for state in ranks] == expected
    assert [state["path"] for state in second] == [sys.path] * 3
    assert [state["cwd"] for state in second] == [str(tmp_path)] * 3 != [state["cwd"] for state in first]
    assert len({state["process"] for state in first + second}) == 6
    assert len({state["random"] for state in first + second}) == 6


def test_output_is_in_the_files_in_which_torchrun_would_put_it(starter, folder):
    run(starter, folder, DPBOOK_TASK="print")
    for rank in range(3):
        logs = folder / "attempt_0" / str(rank)
        assert sorted((logs / "stdout.log").read_text().splitlines()) == ["from C", "from Python", "from below"]
        assert (logs / "stderr.log").read_text() == "a warning\n"


def test_when_one_fails_the_others_are_ended_and_only_its_status_is_returned(starter, folder):
    assert run(starter, folder, DPBOOK_TASK="fail") == ({2: 5}, "")


def test_after_the_timeout_all_are_ended(starter, folder):
    assert run(starter, folder, timeout=2.0, DPBOOK_TASK="hang") == ({}, "")


def test_a_program_that_cannot_be_loaded_fails_in_its_ranks_with_the_error(starter, folder):
    exits, _ = starter.run("no_such_program", folder, 1, os.environ, 60.0)
    assert exits == {0: 1}
    assert "No module named 'no_such_program'" in (folder / "attempt_0" / "0" / "stderr.log").read_text()


def test_calls_of_several_threads_run_at_the_same_time(starter, tmp_path):
    """Each call waits until the other has begun."""

    def run_beside(folder, other):
        return run(
            starter, tmp_path / folder, 2, DPBOOK_TASK="wait for the other run", DPBOOK_TEST=str(tmp_path / other)
        )

    with ThreadPoolExecutor() as pool:
        exits = [exits for exits, _ in pool.map(run_beside, ("one", "other"), ("other", "one"))]
    assert exits == [{0: 0, 1: 0}] * 2


def test_the_callers_multiprocessing_still_works_and_a_rank_may_use_it_too(starter, folder):
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]
        assert run(starter, folder, 1, DPBOOK_TASK="have a pool") == ({0: 0}, "")
        assert pool.map(abs, [-1, 2]) == [1, 2]
    assert multiprocessing.active_children() == []


@linux
def test_processes_that_a_rank_has_started_end_with_it(starter, folder):
    run(starter, folder, DPBOOK_TASK="leave a child")
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
def test_variables_that_are_read_when_a_program_is_loaded_take_effect_although_the_server_is_loaded(forking, tmp_path):
    """A call that is running meanwhile continues."""
    with ThreadPoolExecutor() as pool:
        waits = {"DPBOOK_TASK": "wait for the other run", "DPBOOK_TEST": str(tmp_path / "last")}
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
def test_the_ranks_of_a_killed_server_end_and_it_is_replaced(forking, folder):
    def kill():
        assert wait_until((folder / "begun-2").exists)
        os.kill(forking._server.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert run(forking, folder, DPBOOK_TASK="hang")[0] == {}
    killer.join()
    assert run(forking, folder)[0] == dict.fromkeys(range(3), 0)


def start_in_fork(starter, folder, sender):
    sender.send((run(starter, folder), starter._server.process.pid))


@linux
def test_a_forked_process_starts_its_own_server_which_ends_with_it(forking, folder, tmp_path):
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
def sharing(forking, monkeypatch):
    """Set the environment of a process that uses the server that ``forking`` shares."""
    with forking.share(os.environ, "colorsys") as variable:
        assert forking._server is None  # it is started at the first request
        monkeypatch.setenv(SHARED_SERVERS, variable[SHARED_SERVERS])
        yield


@linux
def test_all_processes_use_a_shared_server_and_each_has_its_own_variables(sharing, forking, tmp_path):
    others = Starter(), Starter()
    for number, other in enumerate(others):
        assert run(other, tmp_path / str(number), DPBOOK_TEST=str(number)) == (dict.fromkeys(range(3), 0), "")
        ranks = states(tmp_path / str(number))
        assert [(state["environment"][4], state["more"]) for state in ranks] == [(str(number), True)] * 3
    assert [other._server for other in others] == [None, None]
    assert forking._server.process.poll() is None


@linux
@pytest.mark.parametrize("preload", [(), ("colorsys",)], ids=["other settings", "other modules"])
def test_a_process_that_needs_another_server_starts_its_own(sharing, forking, folder, preload):
    other = Starter(*preload)
    run(other, folder, 1, PYTHONHASHSEED="1" if preload else "2")
    state = states(folder, 1)[0]
    assert (state["environment"][5], state["more"]) == (("1", True) if preload else ("2", False))
    assert forking._server is None
    other.stop()


@linux
@pytest.mark.parametrize("change", ["program", "user"])
def test_another_python_and_another_user_share_no_server(sharing, forking, folder, monkeypatch, change):
    other = Starter()
    if change == "program":
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert other._shared_launcher(os.environ) is None


@linux
def test_processes_start_their_own_server_if_the_shared_one_cannot_be_started(
    sharing, forking, folder, tmp_path, monkeypatch
):
    """Only the first request fails."""
    with monkeypatch.context() as patch:
        patch.setattr(forking, "_current_server", lambda environment: os.stat(folder / "none"))
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
def test_the_ranks_of_a_killed_caller_end_and_the_shared_server_stays(sharing, forking, folder):
    command = [sys.executable, "-c", CALLER, str(folder), str(folder.parent / "modules")]
    caller = subprocess.Popen(command, env=os.environ | {"DPBOOK_TASK": "hang"})
    assert wait_until(lambda: all((folder / f"begun-{rank}").exists() for rank in range(2)))
    ranks = [int((folder / f"begun-{rank}").read_text()) for rank in range(2)]
    assert all(map(is_running, ranks))
    caller.kill()
    caller.wait()
    assert wait_until(lambda: not any(map(is_running, ranks)))
    assert forking._server.process.poll() is None


@linux
def test_a_server_that_is_no_longer_shared_ends_with_its_ranks_and_others_start_their_own(
    forking, folder, tmp_path, monkeypatch
):
    monkeypatch.delenv(SHARED_SERVERS, raising=False)  # the server of the test run
    with ThreadPoolExecutor() as pool:
        with forking.share(os.environ) as variable:
            monkeypatch.setenv(SHARED_SERVERS, variable[SHARED_SERVERS])
            running = pool.submit(run, Starter(), folder, 2, DPBOOK_TASK="hang")
            assert wait_until((folder / "begun-1").exists)
            server = forking._server.process.pid
        assert running.result() == ({}, "")
    assert not is_running(server)
    assert not Path(variable[SHARED_SERVERS]).exists()
    other = Starter()
    assert run(other, tmp_path / "own", 1) == ({0: 0}, "")
    assert other._server is not None
    other.stop()


@linux
def test_sharing_with_the_settings_of_a_shared_server_starts_none(forking, folder, monkeypatch):
    monkeypatch.delenv(SHARED_SERVERS, raising=False)
    within, other = Starter(), Starter("json")
    with forking.share(os.environ) as variable:
        monkeypatch.setenv(SHARED_SERVERS, variable[SHARED_SERVERS])
        with within.share(os.environ) as same, other.share(os.environ) as another:
            assert (same, another) == ({}, variable)  # the same folder, for a server that loads something else
            assert run(within, folder, 1) == ({0: 0}, "")
            assert forking._server is not None
            assert within._server is None
            assert other.is_shared(os.environ)
        assert not other.is_shared(os.environ)
        assert within.is_shared(os.environ)

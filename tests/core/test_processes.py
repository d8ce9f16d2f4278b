"""Does a process end with its parent, after an error at once, and when its time is up? Are imports not collected?"""

import gc
import importlib
import os
import signal
import subprocess
import sys
import time

import pytest

from dpbook.core import processes
from dpbook.core.errors import RankFailed
from dpbook.core.processes import PARENT, import_without_collection, run_probe
from dpbook.ranks import start
from dpbook.runs.trainer import __main__ as program
from tests.cases import each

CHILD = "import os; from dpbook.core.processes import *; end_with_parent(); print(os.environ[PARENT], os.getpid())"


def child(parent):
    environment = {name: value for name, value in os.environ.items() if name != PARENT}
    if parent is not None:
        environment[PARENT] = str(parent)
    return subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_process_whose_parent_has_ended_before_it_could_ask_ends():
    late = child(os.getpid() + 1)
    assert (late.returncode, late.stdout, late.stderr) == (1, "", "the process that started this one has ended\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
@pytest.mark.parametrize("parent", [os.getpid(), None], ids=["the parent", "nobody"])
def test_a_process_that_its_parent_started_goes_on_and_is_the_parent_of_its_own(parent):
    named, own = child(parent).stdout.split()
    assert named == own


FAILS = """
import sys, threading, time
from dpbook.core.processes import print_error_and_exit
sys.excepthook = print_error_and_exit
threading.Thread(target=time.sleep, args=(600,)).start()  # what an interpreter that ends would wait for
print("before", end="")
raise ValueError("on purpose")
"""


def test_an_error_is_printed_and_ends_the_process_at_once():
    found = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (1, "before")
    assert found.stderr.splitlines()[-1] == "ValueError: on purpose"


LEAVES = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
from dpbook.core.processes import exit_without_teardown
pool = ThreadPoolExecutor(1)
print(pool.submit(len, "one").result(), flush=True)  # its thread then waits for more, for ever
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
exit_without_teardown(3)
"""


def test_a_process_that_leaves_waits_for_its_threads_and_ends_idle_pools():
    found = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout.split("\n"), found.stderr) == (3, ["3", "thread", "at exit", ""], "")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_module_is_imported_without_collections_which_then_go_on_if_they_did(tmp_path, monkeypatch, enabled):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name, fails in ("named_here", ""), ("failing_here", "raise ValueError"), ("other_here", ""):
        (tmp_path / f"{name}.py").write_text(f"import gc\ncollects = gc.isenabled()\n{fails}")
        monkeypatch.delitem(sys.modules, name, raising=False)
    import_without_collection("named_here", "failing_here", "nowhere_here")
    (gc.enable if enabled else gc.disable)()
    try:
        named, other = (importlib.import_module(name) for name in ("named_here", "other_here"))
        with pytest.raises(ValueError, match=r"^$"):
            importlib.import_module("failing_here")
        with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere_here'"):
            importlib.import_module("nowhere_here")
        assert (named.collects, other.collects, gc.isenabled()) == (False, enabled, enabled)
        assert importlib.reload(named).__spec__.origin == str(tmp_path / "named_here.py")
    finally:
        gc.enable()


@each(
    ("code", "result"),
    [
        ("print(1)", (0, "1\n", "")),
        ("print(1); raise ValueError('on purpose')", (1, "1\n", "ValueError: on purpose")),
        ("raise SystemExit(3)", (3, "", "exit status 3")),
        ("import os; os.abort()", (-6, "", "exit status -6")),
    ],
)
def test_a_probe_returns_status_output_and_error(code, result):
    assert run_probe([sys.executable, "-c", code], 60) == result


SLEEPS = "import time; print('before', flush=True); time.sleep(60)"


def test_a_probe_ends_when_its_time_is_up():
    begun = time.monotonic()
    assert run_probe([sys.executable, "-c", SLEEPS], 3) == (None, "before\n", "")
    assert time.monotonic() - begun < 30


def test_a_probe_that_cannot_be_killed_is_left(monkeypatch):
    left = []
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda child: left.append(child))
        assert run_probe([sys.executable, "-c", SLEEPS], 3) == (None, "before\n", "")
    for child in left:
        child.kill()
        child.wait()


def test_a_probe_does_not_wait_for_processes_that_it_leaves_behind():
    leaves = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    )
    begun = time.monotonic()
    status, output, _ = run_probe([sys.executable, "-c", leaves], 50)
    os.kill(int(output), signal.SIGKILL)
    assert status == 0
    assert time.monotonic() - begun < 50


def fails(rank):
    import torch.distributed as dist

    dist.destroy_process_group = lambda: print("destroyed")  # NCCL's would wait for the others
    if rank == 1:
        raise ValueError("on purpose")


@pytest.mark.processes
def test_a_rank_that_failed_does_not_destroy_its_group(capsys):
    with pytest.raises(RankFailed, match="rank 1 failed first: ValueError: on purpose"):
        start(fails, [(rank,) for rank in range(3)])
    assert "[rank 1] destroyed" not in capsys.readouterr().out


def test_the_program_destroys_its_group_after_success_only(monkeypatch):
    def run(options, device):
        raise ValueError("on purpose")

    destroyed = []
    monkeypatch.setattr(program, "bind", lambda: None)
    monkeypatch.setattr(program.dist, "destroy_process_group", lambda: destroyed.append(True))
    monkeypatch.setattr(program, "_run", run)
    with pytest.raises(ValueError, match="on purpose"):
        program.main([])
    assert not destroyed
    monkeypatch.setattr(program, "_run", lambda options, device: None)
    assert program.main([]) == 0
    assert destroyed

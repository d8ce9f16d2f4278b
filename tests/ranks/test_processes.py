"""Starting ranks as real processes: pickled functions, the rank that is blamed for a failure, and no process left."""

import functools
import inspect
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dpbook.classroom.tasks import notebook_check
from dpbook.collectives import ring
from dpbook.core.errors import InvalidArgument, RankFailed
from dpbook.core.fork_server.starter import SHARED_SERVERS, Starter
from dpbook.ranks import held_port, join_accelerator, run, start, starting


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Require that no folder and no process of the test remains, only a server without a rank."""
    notebook_check._close()  # an earlier test of checks may have left the process of the next check on the same server
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    monkeypatch.delenv(SHARED_SERVERS, raising=False)  # the server of a whole test run is not this process's
    yield
    assert list((tmp_path / "temp").iterdir()) == []
    servers = [process for process, parent in parents().items() if parent == os.getpid() and is_server(process)]
    until_ended([process for server in servers for process in descendants(server)])


def parents():
    """Return the parent of each process that runs; {} without a /proc."""
    table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # ended meanwhile
            continue
        if state != "Z":  # a zombie has ended, and its parent has not waited for it
            table[int(path.parent.name)] = int(parent)
    return table


def is_server(process):
    try:
        return b"dpbook.core.fork_server.server" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # ended meanwhile
        return False


def descendants(process):
    """Return the processes that ``process`` has started, and their descendants."""
    table, members = parents(), [process]
    for ancestor in members:
        members += [child for child, parent in table.items() if parent == ancestor]
    return members[1:]


def until_ended(processes):
    deadline = time.monotonic() + 60
    while (running := parents().keys() & processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running == set()


def line_of(function, text):
    """Return the number of the first line of ``function`` that contains ``text``."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def others_wait(rank, failing, fail):
    """Fail on one rank; wait for it in a collective on the others, which fail because of it."""
    import torch.distributed as dist

    if rank == failing:
        fail()
    dist.barrier()


def blame(fail, world=3, failing=1, timeout=60.0):
    with pytest.raises(RankFailed) as caught:
        start(others_wait, [(rank, failing, fail) for rank in range(world)], timeout=timeout, echo=False)
    return str(caught.value)


# Pickling

NOTEBOOK = """
import numpy as np

scale = 10

def helper(rank):
    return scale ** rank

def cell(rank, x):
    print("rank", rank, "speaks")
    print("twice")
    return helper(rank) * x
"""


@pytest.mark.processes
def test_a_function_of_a_notebook_is_pickled_with_its_globals_and_its_output_is_printed_rank_by_rank(capfd):
    notebook = {"__name__": "__main__"}
    exec(NOTEBOOK, notebook)
    results = start(notebook["cell"], [(rank, np.arange(3)) for rank in range(2)])
    assert [r.tolist() for r in results] == [[0, 1, 2], [0, 10, 20]]
    lines = ["[rank 0] rank 0 speaks", "[rank 0] twice", "[rank 1] rank 1 speaks", "[rank 1] twice"]
    assert capfd.readouterr().out.splitlines() == lines


@pytest.mark.processes
def test_functions_of_installed_packages_are_pickled_by_name():
    """By value they would bring a copy of a module's state: torch's ``get_world_size`` would know no group."""
    import torch.distributed as dist

    assert start(functools.partial(dist.get_world_size), [()], echo=False) == [1]


@pytest.mark.parametrize(
    ("function", "args"),
    [(lambda lock: None, [(threading.Lock(),)]), (threading.Lock().acquire, [()]), (lambda x: x, [(x for x in "a")])],
    ids=["an argument", "the function", "the arguments"],
)
def test_a_call_that_cannot_be_pickled_is_refused_before_anything_starts(function, args, monkeypatch):
    monkeypatch.setattr(Starter, "run", None)
    with pytest.raises(InvalidArgument, match="function and its args must be possible to pickle"):
        start(function, [tuple(a) if isinstance(a, tuple) else (a,) for a in args])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: start(print, []), "number of ranks"),
        (lambda: start("print", [()]), "function"),
        (lambda: start(print, [()], timeout=0), "timeout"),
        (lambda: start(print, [()], timeout=float("nan")), "timeout"),
        (lambda: start(print, 5), "args"),
        (lambda: start(print, [1]), "args"),
        (lambda: run(print, [np.zeros(2)], timeout="x"), "timeout"),
        (lambda: run(5, [np.zeros(2)]), "program"),
        (lambda: run(print, [np.zeros(2)], join=join_accelerator), "program"),
        (lambda: run(ring(2), 5), "buffers"),
        (lambda: run(ring(2), [np.zeros(2)]), "buffers"),
        (lambda: run(ring(2), [np.zeros(2), np.zeros(3)]), "buffer of rank 1"),
        (lambda: run(ring(2), [np.zeros(2), np.zeros(2, np.float32)]), "buffer of rank 1"),
        (lambda: run(print, []), "buffers"),
        (lambda: run(print, np.zeros(3)), "buffers"),
        (lambda: run(print, np.zeros((2, 2, 2))), "buffers"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(call, named, monkeypatch):
    monkeypatch.setattr(Starter, "run", None)
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        call()


def test_a_join_that_returns_no_device_is_refused():
    with pytest.raises(RankFailed, match="InvalidArgument: join must be a function"):
        run(ring(1), [np.zeros(2)], join=lambda: None)


# State that is not passed on


def state(rank):
    """Return draws of random numbers, which differ in every process, and state that is the same in a fresh one."""
    import random

    import torch
    import torch.distributed as dist

    fresh = {
        "cwd": os.getcwd(),
        "path": sys.path,
        "variable": os.environ.get("DPBOOK_TEST"),
        "threads": threading.active_count(),
        "torch threads": torch.get_num_threads(),
        "groups": len(dist.distributed_c10d._world.pg_map),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "SIGUSR1": signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL,
        "module": "dpbook_test" in sys.modules,
    }
    return (os.getpid(), random.random(), np.random.rand(), torch.rand(()).item()), fresh  # noqa: NPY002


def change_all_state(rank):
    import random

    import torch
    import torch.distributed as dist

    dist.new_group([0])
    torch.set_num_threads(7)
    torch.ones(2000, 2000).sum()  # in these threads
    for seed in random.seed, np.random.seed, torch.manual_seed:
        seed(5)
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    multiprocessing.set_start_method("spawn")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.environ["DPBOOK_TEST"] = "something"
    sys.modules["dpbook_test"] = sys
    sys.path.append("/somewhere")
    os.chdir("/")


@pytest.mark.processes
def test_a_call_has_the_callers_state_and_nothing_of_an_earlier_call(tmp_path, monkeypatch):
    calls = [(rank,) for rank in range(3)]
    states = start(state, calls)
    start(change_all_state, calls, echo=False)
    states += start(state, calls)
    fresh = {
        "cwd": os.getcwd(), "path": sys.path, "variable": None, "threads": 1, "groups": 1, "start method": None,
        "torch threads": max(1, (os.cpu_count() or 1) // 3), "SIGUSR1": True, "module": False,
    }  # fmt: skip
    assert [rest for _, rest in states] == [fresh] * 6
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPBOOK_TEST", "now")
    monkeypatch.syspath_prepend(tmp_path)
    states += start(state, calls)
    assert [rest for _, rest in states[6:]] == [fresh | {"cwd": str(tmp_path), "path": sys.path, "variable": "now"}] * 3
    for draws in zip(*(draws for draws, _ in states), strict=True):
        assert len(set(draws)) == 9


@pytest.mark.processes
def test_ranks_that_cannot_be_forked_load_torch_themselves(monkeypatch):
    """So it is on macOS."""
    starter = Starter(method="spawn")
    monkeypatch.setattr(starting, "_RANKS", starter)
    try:
        assert start(lambda rank: 10 + rank, [(0,)]) == [10]
        assert blame(raises, world=1, failing=0).startswith("rank 0 failed first: LookupError: no such shard\n")
    finally:
        starter.stop()


@pytest.mark.proof
@pytest.mark.processes
def test_a_rank_that_ends_at_once_breaks_no_connection_of_the_others():
    """gloo lets a rank continue while others still connect: without a barrier one start in a hundred failed."""
    for _ in range(100):
        assert start(lambda rank: rank, [(rank,) for rank in range(4)]) == [0, 1, 2, 3]


# Blame


def raises():
    raise LookupError("no such shard")


@pytest.mark.processes
def test_the_rank_that_raises_is_named_with_its_line_and_not_its_peers():
    message = blame(raises)
    assert message.startswith("rank 1 failed first: LookupError: no such shard\n")
    assert f"line {line_of(raises, 'raise LookupError')}, in raises" in message


@pytest.mark.processes
def test_a_rank_that_exits_by_sys_exit_is_named():
    assert blame(lambda: sys.exit("no data")).startswith("rank 1 failed first: SystemExit: no data")


def writes_stderr_and_dies():
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(1)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("die", "cause", "stderr"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL", ""),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "killed by SIGTERM", ""),
        (lambda: os._exit(0), "it exited with status 0", ""),
        (writes_stderr_and_dies, "it exited with status 1", "; the end of its stderr:\nout of memory"),
    ],
    ids=["SIGKILL", "SIGTERM", "os._exit(0)", "os._exit(1)"],
)
def test_a_rank_that_dies_without_raising_is_named_and_not_its_peers(die, cause, stderr):
    assert blame(die) == f"rank 1 died: {cause}; the other ranks were stopped{stderr}"


def hangs():
    threading.Thread(target=lambda: time.sleep(60), daemon=True).start()  # not the main thread, whose line is reported
    time.sleep(60)


@pytest.mark.processes
def test_a_hang_names_the_line_of_every_rank():
    message = blame(hangs, timeout=2)
    assert message.splitlines() == [
        "no result after 2 s; the ranks were at",
        f"  rank 0: test_processes.py:{line_of(others_wait, 'dist.barrier()')} in others_wait",
        f"  rank 1: test_processes.py:{line_of(hangs, 'time.sleep(60)') + 1} in hangs",
        f"  rank 2: test_processes.py:{line_of(others_wait, 'dist.barrier()')} in others_wait",
    ]


@pytest.mark.processes
def test_a_result_that_cannot_be_pickled_is_the_failure_of_its_rank():
    with pytest.raises(RankFailed, match=r"rank 0 failed first: TypeError: cannot pickle 'generator' object"):
        start(lambda: (x for x in "a"), [()], echo=False)


def kills_the_launcher():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_launcher_that_is_killed_ends_its_ranks_and_none_is_blamed():
    message = blame(kills_the_launcher)
    assert re.match(r"a process exited without an error report \(finished: \[\] of 3 ranks\)", message)


# Ends of processes


@pytest.mark.processes
def test_an_interrupt_ends_every_process(tmp_path):
    begun = tmp_path / "begun"

    def program(rank):
        begun.touch()
        time.sleep(60)

    def interrupt():
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        start(program, [(0,), (1,)], echo=False)


KERNEL = """
import multiprocessing, subprocess, sys, time
from dpbook.ranks import start

print("begun")

def program(rank, seconds):
    if seconds:
        subprocess.Popen(["sleep", "600"])
    time.sleep(seconds)
    return rank

def state():
    return multiprocessing.get_start_method(allow_none=True), "torch" in sys.modules

print(state(), start(program, [(rank, 0) for rank in range(3)]), state(), flush=True)
multiprocessing.set_start_method("spawn")
print(start(program, [(rank, 0) for rank in range(3)]), state(), flush=True)
start(program, [(rank, float(sys.argv[1])) for rank in range(3)])
time.sleep(60)
"""


@pytest.fixture
def kernel(tmp_path):
    """Return a function that begins a script without ``if __name__ == "__main__"``."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    begun = []

    def begin(seconds):
        command = [sys.executable, str(tmp_path / "kernel.py"), str(seconds)]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        begun.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return begun[0]

    yield begin
    begun[0].kill()
    begun[0].communicate()


LINES = ["begun", "(None, False) [0, 1, 2] (None, False)", "[0, 1, 2] ('spawn', False)"]


@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_script_that_is_killed_between_two_calls_leaves_no_server(kernel):
    script = kernel(seconds=0)
    assert [script.stdout.readline().strip() for _ in range(3)] == LINES
    server = [process for process in descendants(script.pid) if is_server(process)]
    script.kill()
    assert script.stdout.read() == ""
    until_ended(server)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_script_without_a_guard_runs_once_loads_no_torch_and_leaves_no_process_when_killed_in_a_call(kernel):
    """A notebook kernel that is restarted while a cell runs is killed like this."""
    script = kernel(seconds=60)
    assert [script.stdout.readline().strip() for _ in range(3)] == LINES
    deadline = time.monotonic() + 120
    while len(running := descendants(script.pid)) < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(running) == 8  # a server, a launcher, three ranks, and what each of these has started
    script.kill()
    until_ended(running)


# Ports


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the port is only chosen")
def test_a_held_port_is_given_only_to_a_process_that_asks_for_it_by_number():
    with held_port() as port, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as later:
        later.bind(("127.0.0.1", port))


def test_a_server_listens_on_a_held_port():
    with held_port() as port, socket.create_server(("", port)) as server, socket.create_connection(
        ("127.0.0.1", port)
    ) as client:  # fmt: skip
        assert client.getpeername()[1] == port == server.getsockname()[1]

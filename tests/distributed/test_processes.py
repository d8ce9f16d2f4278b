"""Starting real processes: what travels, who is blamed when one fails, and that nothing is left behind."""

import functools
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dpbook.collectives import ring
from dpbook.distributed import run, start
from dpbook.errors import InvalidArgument, RankFailed


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Whatever happened: no folder and no process of this test remains."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    yield
    assert list((tmp_path / "temp").iterdir()) == []
    deadline = time.monotonic() + 10
    while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def processes_of(folder):
    """Command lines of the launchers and workers that were given a place in ``folder`` (where there is a /proc)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # ended meanwhile
            continue
        if "dpbook.distributed.worker" in command and str(folder) in command:
            found.append(command)
    return found


def line_of(function, text):
    """The number of the first line of ``function`` that contains ``text``."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def others_wait(rank, failing, fail):
    """One rank fails; the others wait for it in a collective, and will fail because of it."""
    import torch.distributed as dist

    if rank == failing:
        fail()
    dist.barrier()


def blame(fail, world=3, failing=1, timeout=60.0):
    with pytest.raises(RankFailed) as caught:
        start(others_wait, [(rank, failing, fail) for rank in range(world)], timeout=timeout, echo=False)
    return str(caught.value)


# What travels

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
def test_a_function_of_a_notebook_travels_with_what_it_uses_and_its_prints_come_rank_by_rank(capfd):
    notebook = {"__name__": "__main__"}
    exec(NOTEBOOK, notebook)
    results = start(notebook["cell"], [(rank, np.arange(3)) for rank in range(2)])
    assert [r.tolist() for r in results] == [[0, 1, 2], [0, 10, 20]]
    said = ["[rank 0] rank 0 speaks", "[rank 0] twice", "[rank 1] rank 1 speaks", "[rank 1] twice"]
    assert capfd.readouterr().out.splitlines() == said


@pytest.mark.processes
def test_functions_of_installed_packages_travel_by_name():
    """By value they would bring a module's state along, or fail: torch's ``get_world_size`` would know no group."""
    import torch.distributed as dist

    assert start(functools.partial(dist.get_world_size), [()], echo=False) == [1]


@pytest.mark.parametrize(
    ("function", "args"),
    [(lambda lock: None, [(threading.Lock(),)]), (threading.Lock().acquire, [()]), (lambda x: x, [(x for x in "a")])],
    ids=["an argument", "the function", "the arguments"],
)
def test_what_cannot_travel_is_refused_before_anything_starts(function, args, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
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
        (lambda: run(ring(2), 5), "buffers"),
        (lambda: run(print, []), "buffers"),
        (lambda: run(print, np.zeros(3)), "buffers"),
        (lambda: run(print, np.zeros((2, 2, 2))), "buffers"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(call, named, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        call()


def test_importing_the_room_loads_no_torch():
    check = "import dpbook.distributed, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


# Who is blamed


def raises():
    raise LookupError("no such shard")


@pytest.mark.processes
def test_the_rank_that_raises_is_named_with_its_line_and_not_those_that_it_took_along():
    said = blame(raises)
    assert said.startswith("rank 1 failed first: LookupError: no such shard\n")
    assert f"line {line_of(raises, 'raise LookupError')}, in raises" in said


@pytest.mark.processes
def test_a_rank_that_leaves_by_sys_exit_is_named():
    assert blame(lambda: sys.exit("no data"), world=2).startswith("rank 1 failed first: SystemExit: no data")


def speaks_and_dies():
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(1)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("world", "die", "cause", "words"),
    [
        (3, lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL", ""),
        (2, lambda: os.kill(os.getpid(), signal.SIGTERM), "killed by SIGTERM", ""),
        (2, lambda: os._exit(0), "it left with exit status 0", ""),
        (2, speaks_and_dies, "it left with exit status 1", "; its last words were\nout of memory"),
    ],
    ids=["SIGKILL", "SIGTERM", "os._exit(0)", "os._exit(1)"],
)
def test_a_rank_that_dies_without_raising_is_named_and_not_those_that_it_took_along(world, die, cause, words):
    assert blame(die, world) == f"rank 1 died: {cause}; the others were ended{words}"


def hangs():
    threading.Thread(target=lambda: time.sleep(60), daemon=True).start()  # not the thread that is asked for
    time.sleep(60)


@pytest.mark.processes
def test_a_hang_names_the_line_of_every_rank():
    said = blame(hangs, world=2, timeout=2)
    assert said.splitlines() == [
        "no result after 2 s; the ranks were at",
        f"  rank 0: line {line_of(others_wait, 'dist.barrier()')} of others_wait",
        f"  rank 1: line {line_of(hangs, 'time.sleep(60)') + 1} of hangs",
    ]


@pytest.mark.processes
def test_a_result_that_cannot_travel_is_the_failure_of_its_rank():
    with pytest.raises(RankFailed, match=r"rank 0 failed first: TypeError: cannot pickle 'generator' object"):
        start(lambda: (x for x in "a"), [()], echo=False)


def kills_the_launcher():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_launcher_that_is_killed_takes_its_ranks_along_and_nobody_is_blamed():
    said = blame(kills_the_launcher, world=2)
    assert re.match(r"a process ended without a word \(finished: \[\] of 2 ranks\)", said)


# Ends


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
import sys, time
from pathlib import Path
from dpbook.distributed import start

def program(folder):
    Path(folder, "begun").touch()
    time.sleep(60)

start(program, [(sys.argv[1],), (sys.argv[1],)], echo=False)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_caller_that_is_killed_leaves_no_process(tmp_path):
    """A notebook kernel that is restarted while a cell runs is killed."""
    (tmp_path / "kernels").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "kernels")}
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, str(tmp_path)], env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(tmp_path)
    kernel.kill()
    kernel.wait()  # the fixture waits until nothing is left

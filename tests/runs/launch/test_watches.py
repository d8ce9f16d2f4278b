"""Is a run that hangs told apart from one that waits for a rank at work, and is the memory of the ranks reported?"""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dpbook.ranks import all_processes, family
from dpbook.ranks.failure_files import HEARTBEAT_FILE, PROCESS_ID_FILE, RESULT_FILE
from dpbook.runs.launch import watches
from dpbook.runs.launch.watches import HangWatch, MemoryWatch

IDLE, BUSY = (0.0, 0), (1e9, 0)
MIB = 2**20
SHARED, WORKER = 96, 160
TREE = f"""
import os, sys
kept = bytearray(os.urandom(1)) * ({SHARED} * 2**20)
if not os.fork():
    more = bytearray(os.urandom(1)) * ({WORKER} * 2**20)
    print("there", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
os.wait()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the files of three ranks without progress for 100 s: 0 and 2 wait in a collective, 1 is idle."""
    monkeypatch.setattr(watches, "_usage", lambda folder, rank, ranks: IDLE)
    for rank, limit in enumerate([1800.0, None, 1800.0]):
        beat(tmp_path, rank, limit)
        (tmp_path / PROCESS_ID_FILE.format(rank)).write_text(str(os.getpid()))
    return tmp_path


def beat(folder, rank, limit, *, since=-100.0):
    (folder / HEARTBEAT_FILE.format(rank)).write_text(json.dumps({"since": time.time() + since, "limit": limit}))


def hangs(folder, *, timeout=50.0, strict=False, later=100.0, monkeypatch):
    """Return True if the run counts as hanging ``later`` seconds after a first look."""
    watch, now = HangWatch(folder, range(3), timeout, strict=strict), time.time()
    assert not watch.hangs()
    monkeypatch.setattr(watches.time, "time", lambda: now + later)
    return watch.hangs()


@pytest.mark.parametrize(
    ("limits", "usage", "options", "hanging"),
    [
        ({}, [IDLE, IDLE], {}, True),  # a rank is idle while the others wait
        ({}, [IDLE, IDLE], {"later": 49.0}, False),  # but not yet for the timeout
        ({}, [IDLE, BUSY], {}, False),  # it works
        ({}, [None, None], {}, False),  # perhaps
        ({1: 1800.0}, [], {}, True),  # all ranks wait
        ({0: None, 1: None, 2: None}, [], {}, False),  # none waits
        ({2: 7200.0}, [], {}, False),  # the script has set a longer timeout
        ({2: 7200.0}, [IDLE, IDLE], {"strict": True}, True),
    ],
)
def test_ranks_hang_that_wait_in_vain(folder, monkeypatch, limits, usage, options, hanging):
    looks = iter(usage)
    monkeypatch.setattr(watches, "_usage", lambda folder, rank, ranks: next(looks))
    for rank, limit in limits.items():
        beat(folder, rank, limit)
    assert hangs(folder, **options, monkeypatch=monkeypatch) is hanging


def test_a_rank_that_made_progress_meanwhile_is_no_hang(folder, monkeypatch):
    beat(folder, 1, None, since=60.0)
    assert not hangs(folder, monkeypatch=monkeypatch)


def test_ranks_that_wait_for_a_finished_one_are_a_hang(folder, monkeypatch):
    monkeypatch.setattr(watches, "_usage", lambda folder, rank, ranks: None)
    (folder / RESULT_FILE.format(1)).touch()
    assert hangs(folder, monkeypatch=monkeypatch)


@pytest.mark.processes
@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="reads /proc")
@pytest.mark.parametrize("session", ["of its own", "the rank's"])
def test_the_usage_of_a_rank_includes_all_processes_that_it_started(tmp_path, session):
    inner = (
        "import sys, time; open(sys.argv[1], 'wb').write(bytes(2**22))\n"
        "while time.process_time() < 0.05: pass\n"  # the kernel counts in hundredths of a second
        "print(flush=True); sys.stdin.read()"
    )
    own = f"start_new_session={session == 'of its own'}"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}, sys.argv[1]], {own})"
    with subprocess.Popen(
        [sys.executable, "-c", outer, tmp_path / "file"],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        (tmp_path / PROCESS_ID_FILE.format(0)).write_text(str(process.pid))
        assert process.stdout.read(1) == b"\n"
        computed, moved = watches._usage(tmp_path, 0, [0, 1])
        (started,) = family(process.pid, all_processes()).keys() - {process.pid}
        (tmp_path / PROCESS_ID_FILE.format(1)).write_text(str(started))  # as if it were another rank
        _, moved_alone = watches._usage(tmp_path, 0, [0, 1])
        process.stdin.close()
    assert moved >= 2**22 > moved_alone
    assert computed > 0


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """Start a rank with ``SHARED`` MiB, which it shares with the worker that it forks; that has ``WORKER`` MiB more."""
    monkeypatch.setattr(watches.failure_files, "last_attempt", lambda folder: folder)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TREE], start_new_session=True, **pipes) as process:
        (tmp_path / PROCESS_ID_FILE.format(1)).write_text(str(process.pid))
        assert process.stdout.read(5) == b"there"
        yield SimpleNamespace(folder=tmp_path, process=process)
        process.stdin.close()


def test_shared_memory_is_counted_once_and_remembered_when_the_processes_are_gone(rank):
    watch = MemoryWatch(rank.folder, range(3))
    watch.sample()
    [(number, memory)] = watch._last_seen.items()
    assert (number, memory.n_others) == (1, 1)
    assert SHARED + WORKER <= (memory.main + memory.others) / MIB < SHARED + WORKER + 40  # and two interpreters
    rank.process.kill()
    rank.process.wait()
    watch._next_sample = 0.0
    watch.sample()
    assert watch._last_seen == {1: memory}
    assert watch.summary().startswith(f"memory when last sampled: rank 1 used {memory}; in total 0.3 GiB of ")


def test_the_kernels_count_of_oom_kills_is_reported(rank, monkeypatch):
    counts = iter([5, 7])
    monkeypatch.setattr(watches, "_oom_kills", lambda: next(counts))
    watch = MemoryWatch(rank.folder, range(3))
    watch.sample()
    assert watch.summary().endswith("; the kernel's OOM killer killed 2 of the machine's processes")


def test_without_a_sample_nothing_is_reported(tmp_path):
    assert MemoryWatch(tmp_path, range(3)).summary() == ""

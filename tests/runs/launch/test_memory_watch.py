"""Is it told what ranks and their loader workers held of the memory when they were last seen?"""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from dpbook.ranks.failure_files import PROCESS
from dpbook.runs.launch import memory_watch
from dpbook.runs.launch.memory_watch import MemoryWatch

MIB = 2**20
OWN, WORKER = 96, 160
TREE = f"""
import os, sys
kept = bytearray(os.urandom(1)) * ({OWN} * 2**20)
if not os.fork():
    more = bytearray(os.urandom(1)) * ({WORKER} * 2**20)
    print("there", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
os.wait()
"""


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """A rank that holds ``OWN`` MiB, which the worker that it forked shares, and the worker ``WORKER`` of its own."""
    monkeypatch.setattr(memory_watch.failure_files, "last_attempt", lambda folder: folder)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TREE], start_new_session=True, **pipes) as process:
        (tmp_path / PROCESS.format(1)).write_text(str(process.pid))
        assert process.stdout.read(5) == b"there"
        yield SimpleNamespace(folder=tmp_path, process=process)
        process.stdin.close()


def test_what_processes_share_is_counted_once_and_kept_when_they_are_gone(rank):
    watch = MemoryWatch(rank.folder, range(3))
    watch.look()
    [(number, seen)] = watch._held.items()
    assert (number, seen.others) == (1, 1)
    assert OWN + WORKER <= (seen.own + seen.rest) / MIB < OWN + WORKER + 40  # and two interpreters
    rank.process.kill()
    rank.process.wait()
    watch._next = 0.0
    watch.look()
    assert watch._held == {1: seen}
    assert watch.told().startswith(f"memory when last seen: rank 1 held {seen}; together 0.3 GiB of ")


def test_the_kernels_own_count_is_told_where_it_says(rank, monkeypatch):
    counts = iter([5, 7])
    monkeypatch.setattr(memory_watch, "_kills", lambda: next(counts))
    watch = MemoryWatch(rank.folder, range(3))
    watch.look()
    assert watch.told().endswith("; processes ended by the kernel for want of memory meanwhile: 2")


def test_nothing_is_said_where_nothing_was_seen(tmp_path):
    assert MemoryWatch(tmp_path, range(3)).told() == ""

"""Does the guard of a rank name a full disk, and end a rank that waits too long for the others, or in vain?"""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dpbook.runs.launch import rank_setup
from dpbook.runs.launch.command import RECORDED_VARIABLE
from dpbook.runs.launch.rank_setup import FULL_DISK_BYTES, explain_full_disk

Usage = namedtuple("Usage", "total used free")


def raised(call):
    with pytest.raises((RuntimeError, OSError)) as caught:
        call()
    return caught.value


class FileOnSmallDisk:
    """File on a disk with room for a few bytes."""

    name = "/there/checkpoint.pt"
    room = 1000

    def write(self, content):
        self.room -= len(content)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(content)

    def flush(self):
        pass


def write_by_name():
    torch.save(torch.zeros(10**5), "/dev/full")


def test_an_open_file_on_a_full_disk_is_named():
    error = raised(lambda: torch.save(torch.zeros(10**5), FileOnSmallDisk()))
    assert "No space" not in str(error)
    plain = explain_full_disk(error)
    assert isinstance(plain, OSError)
    assert (plain.errno, plain.filename) == (errno.ENOSPC, FileOnSmallDisk.name)
    assert plain.__traceback__ is error.__traceback__


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to Linux's device that is always full")
@pytest.mark.parametrize(("free", "full"), [(FULL_DISK_BYTES - 1, True), (FULL_DISK_BYTES, False)])
def test_a_file_given_by_name_is_named_if_its_disk_is_full(monkeypatch, free, full):
    error = raised(write_by_name)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: Usage(0, 0, free if path == Path("/dev") else FULL_DISK_BYTES)
    )
    plain = explain_full_disk(error)
    assert str(plain) == "[Errno 28] No space left on device: '/dev/full'" if full else plain is error


def test_another_error_is_returned_unchanged():
    error = ValueError("on purpose")
    assert explain_full_disk(error) is error


def init_process_group(wait):
    """Stand in for torch's function in which ranks wait for each other; the watchdog looks for its name."""
    wait()


@pytest.fixture
def give_up(monkeypatch):
    monkeypatch.setattr(rank_setup, "POLL_SECONDS", 0.01)
    called = threading.Event()
    called.calls = 0

    def call():
        called.calls += 1
        called.set()

    called.call = call
    return called


def test_a_long_wait_is_given_up_once(give_up):
    rank_setup.watch_start(0.1, give_up.call)
    init_process_group(lambda: give_up.wait(60) and time.sleep(0.3))
    assert give_up.calls == 1


def test_a_short_wait_is_not_given_up_nor_are_later_ones(give_up):
    rank_setup.watch_start(60, give_up.call)
    init_process_group(lambda: time.sleep(0.2))
    assert not give_up.wait(0.3)


def test_work_before_the_start_is_no_wait(give_up):
    rank_setup.watch_start(0.1, give_up.call)
    time.sleep(0.5)
    assert give_up.calls == 0
    init_process_group(lambda: give_up.wait(60))
    assert give_up.calls == 1


def test_the_watchdog_keeps_nothing_of_a_function_that_it_has_seen(monkeypatch):
    """A frame that it held while it sleeps would hold the tensors of a step."""
    entered, looked, ended = (threading.Event() for _ in range(3))
    sleeps = iter([lambda: entered.wait(60), lambda: (looked.set(), ended.wait(60)), threading.Event().wait])
    monkeypatch.setattr(
        rank_setup, "time", SimpleNamespace(sleep=lambda seconds: next(sleeps)(), monotonic=time.monotonic)
    )

    def step():
        temporary = threading.Event()
        entered.set()
        assert looked.wait(60)
        return weakref.ref(temporary)

    rank_setup.watch_start(60, pytest.fail)
    kept = step()()
    ended.set()
    assert kept is None


GUARDED = """
import sys
from dpbook.core import exit_without_teardown
from dpbook.runs.launch import guard, spawned_ranks
spawned_ranks.GRACE_SECONDS = 0.5
exit_without_teardown(guard.main(sys.argv[1:]))
"""
RECORDED = """
import multiprocessing, sys, threading, time
writer = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
{start}
open("recorded-0", "w").close()
try:
    sys.exit()  # as a watcher ends the script
finally:
    print("saved")
    {wait}
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("start", "wait"),
    [
        ("writer.start()", ""),  # Python waits for it when the script ends
        ("threading.Thread(target=time.sleep, args=(600,)).start()", ""),
        ("writer.start()", "writer.join()"),
    ],
)
def test_a_recorded_rank_ends_even_if_a_thread_or_process_of_the_script_waits_for_more(tmp_path, start, wait):
    (tmp_path / "train.py").write_text(RECORDED.format(start=start, wait=wait))
    found = guarded(tmp_path, {RECORDED_VARIABLE: str(tmp_path / "recorded-{}")})
    assert (found.returncode, found.stdout, found.stderr) == (0, "saved\n", "")


@pytest.mark.processes
def test_a_script_that_replaces_print_still_shows_its_error(tmp_path):
    (tmp_path / "train.py").write_text(
        "import builtins\nbuiltins.print = lambda *args: None\nraise ValueError('mine')\n"
    )
    found = guarded(tmp_path, {})
    assert (found.returncode, found.stderr.splitlines()[-1]) == (1, "ValueError: mine")


def guarded(folder, variables):
    """Run train.py as the only rank; return when all have ended that could still print, its processes too."""
    return subprocess.run(
        [sys.executable, "-c", GUARDED, str(folder / "launch"), "train.py"],
        cwd=folder,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

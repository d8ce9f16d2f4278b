"""Is a rank that waits too long for the others ended, and one that does not wait left alone?"""

import threading
import time

import pytest

from dpbook.runs.launch import watchdog


def init_process_group(seconds):
    """What torch calls the function in which ranks meet."""
    time.sleep(seconds)


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK", 0.01)
    called = threading.Event()
    called.calls = 0

    def call():
        called.calls += 1
        called.set()

    called.call = call
    return called


def test_a_long_wait_is_told_once(late):
    watchdog.watch_start(0.1, late.call)
    init_process_group(1.0)
    assert late.calls == 1


def test_a_short_wait_is_not_told_nor_are_later_ones(late):
    watchdog.watch_start(5.0, late.call)
    init_process_group(0.2)
    assert not late.wait(0.3)


def test_work_before_the_meeting_is_no_wait(late):
    watchdog.watch_start(0.1, late.call)
    time.sleep(0.5)
    assert late.calls == 0
    init_process_group(1.0)
    assert late.calls == 1

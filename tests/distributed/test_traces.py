"""When a rank's time is up it ends a moment before the others, and their collectives fail: who is blamed then?"""

import json
import os
import traceback

import pytest

from dpbook.distributed.traces import ERROR, STACK, why_it_failed

DUMP = 'Timeout (0:00:02)!\nThread 0x01 (most recent call first):\n  File "cell.py", line 3 in hangs\n'


def waits():
    raise RuntimeError("Connection closed by peer")


@pytest.fixture
def folder(tmp_path):
    """Rank 1 hung until the time was up, at 100 s; rank 0 waited for it, and failed."""
    (tmp_path / STACK.format(1)).write_text(DUMP)
    os.utime(tmp_path / STACK.format(1), (100, 100))
    (tmp_path / STACK.format(0)).touch()
    return tmp_path


def fail(folder, seconds):
    try:
        waits()
    except RuntimeError as error:
        report = {"time": seconds, "type": "RuntimeError", "message": str(error)}
        report["traceback"] = "".join(traceback.format_exception(error))
    (folder / ERROR.format(0)).write_text(json.dumps(report))


def test_an_error_after_the_time_was_up_is_a_consequence(folder):
    fail(folder, 100.001)
    line = waits.__code__.co_firstlineno + 1
    assert why_it_failed(folder, 2, 2.0, 1, "").splitlines() == [
        "no result after 2 s; the ranks were at",
        f"  rank 0: line {line} of waits",
        "  rank 1: line 3 of hangs",
    ]


def test_where_a_failed_rank_was_is_told_by_its_error_and_not_by_how_it_was_ended(folder):
    fail(folder, 100.001)
    (folder / STACK.format(0)).write_text('Current thread 0x02:\n  File "worker.py", line 9 in main\n')
    assert "of waits" in why_it_failed(folder, 2, 2.0, 1, "")


def test_an_error_before_the_time_was_up_is_the_cause(folder):
    fail(folder, 99.0)
    assert why_it_failed(folder, 2, 2.0, 1, "").startswith("rank 0 failed first: RuntimeError: Connection closed")


def test_a_rank_that_is_ended_because_another_failed_did_not_run_out_of_time(folder):
    (folder / STACK.format(1)).write_text(DUMP.partition("\n")[2])
    fail(folder, 100.001)
    assert why_it_failed(folder, 2, 2.0, 1, "").startswith("rank 0 failed first")

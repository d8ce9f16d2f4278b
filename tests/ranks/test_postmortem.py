"""Who is blamed? When a rank's time is up it ends a moment before the others, and their collectives fail.

And ranks that are ended because another failed are well.
"""

import json
import os
import traceback

import pytest

from dpbook.ranks import call_check
from dpbook.ranks.postmortem import ERROR, RESULT, STACK, who_never_came, why_it_failed

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


C10D = "/lib/site-packages/torch/distributed/distributed_c10d.py"
WAITS = f'Thread 0x02:\n  File "{C10D}", line 9 in barrier\n  File "train.py", line 7 in main\n'
COMPUTES = 'Thread 0x03:\n  File "train.py", line 5 in main\n'
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
CLOSED = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2451"


def of_three(folder, *, failed=(), ended=(), finished=()):
    """What three ranks left: ``failed`` holds (rank, message), in the order of time, ``ended`` (rank, stack)."""
    for time, (rank, message) in enumerate(failed):
        trace = f'Traceback:\n  File "train.py", line 7, in main\n  File "{C10D}", line 9, in barrier\n{message}\n'
        report = {"time": time, "type": "RuntimeError", "message": message, "traceback": trace}
        (folder / ERROR.format(rank)).write_text(json.dumps(report))
    for rank, stack in ended:
        (folder / STACK.format(rank)).write_text(stack)
    for rank in finished:
        (folder / RESULT.format(rank)).touch()
    return who_never_came(folder, 3)


def test_of_a_rank_that_was_elsewhere_when_another_waited_too_long_it_is_said(tmp_path):
    said = of_three(tmp_path, failed=[(0, TIMED_OUT)], ended=[(1, COMPUTES), (2, WAITS)])
    assert said == "rank 1 never came: it was at line 5 of main"


@pytest.mark.parametrize("own", ["label 17, but 10 classes", "the download timed out", "Connection to data closed"])
def test_of_ranks_that_were_ended_after_an_error_of_another_nothing_is_said(tmp_path, own):
    assert of_three(tmp_path, failed=[(1, own)], ended=[(0, COMPUTES), (2, WAITS)]) == ""


def test_nor_where_a_wait_fails_because_another_rank_failed_first(tmp_path):
    assert of_three(tmp_path, failed=[(1, "KeyError: 'label'"), (2, TIMED_OUT)], ended=[(0, COMPUTES)]) == ""


def test_nor_where_a_rank_was_killed(tmp_path):
    assert of_three(tmp_path, ended=[(0, COMPUTES), (2, WAITS)]) == ""
    assert of_three(tmp_path, failed=[(2, CLOSED)], ended=[(0, COMPUTES)]) == ""


def test_a_rank_that_finished_is_named_where_another_lost_it(tmp_path):
    assert of_three(tmp_path, failed=[(0, CLOSED)], ended=[(2, COMPUTES)], finished=[1]) == "rank 1 had finished"


def test_a_rank_that_compares_calls_waits_too(tmp_path):
    checks = f'Thread 0x03:\n  File "{call_check.__file__}", line 9 in check_calls\n  File "train.py", line 8 in main\n'
    said = of_three(tmp_path, failed=[(1, TIMED_OUT)], ended=[(0, checks), (2, WAITS)])
    assert "never came" not in said
    assert "rank 0: check_calls, line 8 of main" in said

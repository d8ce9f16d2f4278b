"""Is the right rank blamed? When a rank times out it ends a moment before the others, and their collectives fail.

Ranks that are ended because another failed are not at fault either.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import pytest

import dpbook
from dpbook.ranks.failure_files import (
    ERROR_FILE,
    PROCESS_ID_FILE,
    RESULT_FILE,
    STACK_FILE,
    TIMEOUT_FILE,
    cause_of_failure,
)
from dpbook.runs.launch import Launch, launcher
from dpbook.runs.postmortem.rules import why_it_failed

DUMP = 'Timeout (0:00:02)!\nThread 0x01 (most recent call first):\n  File "cells/ipykernel_7/1.py", line 3 in hangs\n'


def waits():
    raise RuntimeError("Connection closed by peer")


@pytest.fixture
def folder(tmp_path):
    """Return the files of two ranks: rank 1 timed out, at 100 s; rank 0 waited for it, and failed."""
    (tmp_path / TIMEOUT_FILE.format(1)).write_text(DUMP)
    os.utime(tmp_path / TIMEOUT_FILE.format(1), (100, 100))
    (tmp_path / TIMEOUT_FILE.format(0)).touch()
    return tmp_path


def fail(folder, seconds):
    try:
        waits()
    except RuntimeError as error:
        report = {"time": seconds, "type": "RuntimeError", "message": str(error)}
        report["traceback"] = "".join(traceback.format_exception(error))
    (folder / ERROR_FILE.format(0)).write_text(json.dumps(report))


def test_an_error_after_the_time_out_is_a_consequence(folder):
    fail(folder, 100.001)
    line = waits.__code__.co_firstlineno + 1
    assert cause_of_failure(folder, 2, 2.0, {}, "").splitlines() == [
        "no result after 2 s; the ranks were at",
        f"  rank 0: test_postmortem.py:{line} in waits",
        "  rank 1: line 3 of hangs",
    ]


def test_the_position_of_a_failed_rank_is_that_of_its_error(folder):
    fail(folder, 100.001)
    (folder / STACK_FILE.format(0)).write_text('Current thread 0x02:\n  File "worker.py", line 9 in main\n')
    assert "in waits" in cause_of_failure(folder, 2, 2.0, {}, "")


def test_an_error_before_the_time_out_is_the_cause(folder):
    fail(folder, 99.0)
    assert cause_of_failure(folder, 2, 2.0, {}, "").startswith("rank 0 failed first: RuntimeError: Connection closed")


def test_a_rank_that_is_ended_because_another_failed_did_not_time_out(folder):
    (folder / TIMEOUT_FILE.format(1)).rename(folder / STACK_FILE.format(1))
    fail(folder, 100.001)
    assert cause_of_failure(folder, 2, 2.0, {}, "").startswith("rank 0 failed first")


def test_a_rank_that_is_ended_while_it_times_out_keeps_the_complete_one_of_two_stacks(folder):
    (folder / STACK_FILE.format(1)).write_text("Thread 0x01 (most recent call first):\n")
    assert cause_of_failure(folder, 2, 2.0, {}, "").endswith("\n  rank 1: line 3 of hangs")
    (folder / STACK_FILE.format(1)).write_text(DUMP)
    (folder / TIMEOUT_FILE.format(1)).write_text("Timeout (0:00:02)!\n")
    assert cause_of_failure(folder, 2, 2.0, {}, "").endswith("\n  rank 1: line 3 of hangs")


C10D = "/lib/site-packages/torch/distributed/distributed_c10d.py"
WAITS = f'Thread 0x02:\n  File "{C10D}", line 9 in barrier\n  File "train.py", line 7 in main\n'
COMPUTES = 'Thread 0x03:\n  File "train.py", line 5 in main\n'
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
CLOSED = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2451"


def headline(folder, *, failed=(), ended=(), finished=(), starting=(), stderr="", before=(), kind="Error"):
    """Return the headline for three ranks.

    ``failed`` holds (rank, message) in the order of time, ``ended`` (rank, stack). ``starting``: ranks that have not
    written their process id. ``before``: type and message of the errors during whose handling those of ``failed`` were
    raised.
    """
    for rank in range(3):
        (folder / STACK_FILE.format(rank)).touch()
        if rank not in starting:
            (folder / PROCESS_ID_FILE.format(rank)).write_text(str(rank))
    for time, (rank, message) in enumerate(failed):
        trace = f'Traceback:\n  File "train.py", line 7, in main\n  File "{C10D}", line 9, in {WAITED_IN}\n{message}\n'
        report = {"time": time, "type": kind, "message": message, "traceback": trace, "before": before}
        (folder / ERROR_FILE.format(rank)).write_text(json.dumps(report))
    for rank, stack in ended:
        (folder / STACK_FILE.format(rank)).write_text(stack)
    for rank in finished:
        (folder / RESULT_FILE.format(rank)).touch()
    return why_it_failed(folder, 3, 9.0, 1, stderr, folder).splitlines()[0]


def torchrun_report(rank, status):
    """Return torchrun's report of a process."""
    return f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {status} (pid: {rank})\n"


WAITED_IN = "barrier"
WAITED = "in barrier, train.py:7 in main"
AT_LINE_5 = f"rank 1 never joined: it was at train.py:5 in main; ranks 0, 2 were {WAITED}"


GLOO_GAVE_UP = "Application timeout caused pair closure"


@pytest.mark.parametrize(
    "waited", [TIMED_OUT, "Operation timed out!", "barrier timeout after 3000ms, key: a", GLOO_GAVE_UP]
)
def test_a_rank_that_was_elsewhere_when_another_timed_out_is_blamed(tmp_path, waited):
    assert headline(tmp_path, failed=[(0, waited)], ended=[(1, COMPUTES), (2, WAITS)]) == AT_LINE_5


def test_also_if_a_third_rank_lost_the_one_that_timed_out(tmp_path):
    assert headline(tmp_path, failed=[(2, CLOSED), (0, TIMED_OUT)], ended=[(1, COMPUTES)]) == AT_LINE_5


KEY = [("KeyError", "'label'")]
MESSAGES = ["label 17, but 10 classes", "the download timed out", "Connection to data closed"]


@pytest.mark.parametrize("message", MESSAGES)
def test_an_error_that_blames_no_rank_is_the_cause_and_ranks_that_were_ended_are_not_blamed(tmp_path, message):
    line = headline(tmp_path, failed=[(2, TIMED_OUT), (1, message)], ended=[(0, COMPUTES)])
    assert line == f"rank 1 failed first: Error: {message}"


def test_an_error_without_a_message_is_recognised_by_its_name(tmp_path):
    assert headline(tmp_path, failed=[(1, "")], ended=[(0, WAITS), (2, WAITS)]) == "rank 1 failed first: Error"


def test_of_two_errors_that_blame_no_rank_the_first_is_reported(tmp_path):
    assert headline(tmp_path, failed=[(2, "a"), (0, "b")], ended=[(1, COMPUTES)]) == "rank 2 failed first: Error: a"


def test_the_error_of_a_data_loading_process_is_reported_without_torchs_frame(tmp_path):
    original = "Original Traceback (most recent call last):\n  File a\nKeyError: 'a'\n  File b\nKeyError: 'label'\n"
    caught = f"Caught KeyError in DataLoader worker process 0.\n{original}"
    line = headline(tmp_path, failed=[(1, caught)], ended=[(0, WAITS), (2, WAITS)], kind="KeyError")
    assert line == "rank 1 failed first: KeyError: 'label' (in DataLoader worker process 0)"


SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "spawn.py", line 90, in _wrap
    fn(i, *args)
torch.distributed.DistNetworkError: The port is taken: EADDRINUSE
"""


def test_a_script_that_starts_its_own_ranks_is_reported_with_their_error(tmp_path):
    line = headline(tmp_path, failed=[(1, SPAWNED)], ended=[(0, WAITS), (2, WAITS)], kind="ProcessRaisedException")
    assert line.startswith(
        "rank 1 failed first: DistNetworkError: The port is taken: EADDRINUSE (in process 1 of those that the script"
    )


@pytest.mark.parametrize(
    "message",
    [
        "Timed out after 301 seconds waiting for clients. 3/4 clients joined.",
        "the other ranks did not join init_process_group within 9 s; it was given world_size=4",
    ],
)
def test_a_world_size_that_is_not_the_launchs_is_the_cause(tmp_path, monkeypatch, message):
    monkeypatch.setattr(sys.modules[__name__], "WAITED_IN", "init_process_group")
    line = headline(tmp_path, failed=[(0, message), (2, message)], ended=[(1, WAITS)])
    assert line.startswith("the script asks init_process_group for 4 ranks, and 3 were started")
    with_three = message.replace("4", "3")
    assert "asks" not in headline(tmp_path, failed=[(0, with_three), (2, with_three)], ended=[(1, WAITS)])


def test_an_error_is_reported_although_a_wait_failed_while_it_was_handled(tmp_path):
    line = headline(tmp_path, failed=[(1, TIMED_OUT)], ended=[(0, WAITS), (2, WAITS)], before=KEY)
    assert line == "rank 1 failed first: KeyError: 'label'"


def test_an_error_is_reported_although_the_program_answers_it_with_a_status(tmp_path):
    line = headline(tmp_path, failed=[(1, "1")], ended=[(0, WAITS), (2, WAITS)], before=KEY, kind="SystemExit")
    assert line == "rank 1 failed first: KeyError: 'label'"


def test_an_error_that_a_program_raises_for_a_lost_connection_is_no_cause(tmp_path):
    line = headline(tmp_path, failed=[(0, "gave up")], finished=[1], ended=[(2, WAITS)], before=[("Error", CLOSED)])
    assert line == f"rank 1 finished (status 0) while ranks 0, 2 were {WAITED}"


def test_a_killed_rank_is_reported_before_lost_connections(tmp_path):
    line = headline(tmp_path, failed=[(2, CLOSED)], ended=[(0, COMPUTES)], stderr=torchrun_report(1, -9))
    assert line.startswith("rank 1 died: killed by SIGKILL (as the kernel does when memory runs out); the other ranks")


def test_a_rank_that_exited_without_a_report_died(tmp_path):
    line = headline(tmp_path, failed=[(2, CLOSED)], ended=[(0, COMPUTES)])
    assert line == "rank 1 died: it exited with status 0; the other ranks were stopped"


def test_a_rank_that_had_to_be_killed_stopped_responding(tmp_path):
    stderr = f"Sending process 1 closing signal SIGTERM\n{torchrun_report(1, -9)}"
    line = headline(tmp_path, failed=[(0, TIMED_OUT)], ended=[(2, WAITS)], stderr=stderr)
    assert line == f"rank 1 stopped responding and had to be killed; ranks 0, 2 were {WAITED}"


def test_a_rank_that_finishes_after_sigterm_is_not_blamed(tmp_path):
    stderr = "Sending process 1 closing signal SIGTERM\n"
    line = headline(tmp_path, failed=[(0, TIMED_OUT)], finished=[1], ended=[(2, WAITS)], stderr=stderr)
    assert line == f"the rank at fault is unknown: ranks 0, 2 were {WAITED}"


@pytest.mark.parametrize(("signalled", "at_fault"), [(2, 1), (0, 2)])
def test_nor_is_one_that_exits_with_a_status_after_sigterm(tmp_path, signalled, at_fault):
    stderr = f"Sending process {signalled} closing signal SIGTERM\n"
    line = headline(tmp_path, failed=[(2, "143"), (1, "1")], kind="SystemExit", ended=[(0, WAITS)], stderr=stderr)
    assert line.startswith(f"rank {at_fault} failed first: SystemExit: ")


def test_a_rank_that_alone_received_sigterm_and_gave_up_waiting_is_reported(tmp_path):
    stderr = (
        f"Sending process 0 closing signal SIGTERM\nSending process 2 closing signal SIGTERM\n{torchrun_report(1, 143)}"
    )
    line = headline(tmp_path, ended=[(0, COMPUTES), (1, WAITS), (2, WAITS)], stderr=stderr)
    assert line == f"rank 1 received SIGTERM and exited: rank 0 was at train.py:5 in main; ranks 1, 2 were {WAITED}"


def test_a_rank_that_was_ended_before_it_had_written_its_process_id_is_not_blamed(tmp_path):
    stderr = f"Sending process 0 closing signal SIGTERM\n{torchrun_report(0, -15)}"
    line = headline(tmp_path, failed=[(1, "label 17")], ended=[(2, COMPUTES)], stderr=stderr, starting=[0])
    assert line == "rank 1 failed first: Error: label 17"


def test_the_rank_that_the_others_waited_for_is_named_and_not_one_that_had_finished(tmp_path):
    line = headline(tmp_path, failed=[(0, TIMED_OUT)], finished=[2], ended=[(1, COMPUTES)])
    assert line == f"rank 1 never joined: it was at train.py:5 in main; rank 0 was {WAITED}"


def test_ranks_that_waited_in_different_calls_are_named_with_their_calls(tmp_path):
    other = WAITS.replace("barrier", "all_reduce").replace("line 7", "line 8")
    line = headline(tmp_path, failed=[(0, TIMED_OUT), (2, CLOSED)], ended=[(1, other)])
    assert line == (
        f"the ranks waited in different collectives: ranks 0, 2 were {WAITED}; "
        "rank 1 was in all_reduce, train.py:8 in main"
    )
    advice = "--check-calls shows which rank makes which call"
    for check_calls in (0, 60):
        launch = Launch(("-m", "train"), 3, check_calls=check_calls)
        reason = launcher._reason(launch, tmp_path, 9.0, 1, "", tmp_path, hang_timeout=None)
        assert (advice in reason) == (check_calls == 0)


PREAMBLE = "[enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 8. Received data"


def test_gloos_error_about_sizes_is_reported_and_not_the_rank_that_it_aborted(tmp_path):
    line = headline(
        tmp_path, failed=[(2, CLOSED)], ended=[(0, WAITS), (1, WAITS)], stderr=PREAMBLE + torchrun_report(0, -6)
    )
    assert line == f"the ranks' calls do not match: ranks 0, 1, 2 were {WAITED}"


def test_the_position_of_a_rank_inside_a_library_is_the_line_that_called_it(tmp_path):
    asleep = f'Thread 0x03:\n  File "{os.__file__}", line 9 in wait\n' + COMPUTES.partition("\n")[2]
    assert headline(tmp_path, failed=[(0, TIMED_OUT)], ended=[(1, asleep), (2, WAITS)]) == AT_LINE_5


def test_a_rank_that_was_writing_its_own_error_has_not_missed_a_call(folder):
    (folder / TIMEOUT_FILE.format(1)).unlink()
    package = Path(dpbook.__file__).parent
    frames = [("core/files.py", "write_atomically"), ("ranks/failure_files.py", "write_error")]
    frames += [("runs/launch/rank_setup.py", "write_error"), ("runs/launch/guard.py", "main")]
    stack = "".join(f'  File "{package / file}", line 36 in {name}\n' for file, name in frames)
    (folder / STACK_FILE.format(1)).write_text(f"Current thread 0x02 (most recent call first):\n{stack}")
    fail(folder, 100.0)
    report = json.loads((folder / ERROR_FILE.format(0)).read_text())
    report |= {"before": [], "place": None}
    report["message"] = "rank 0 is in call 3; rank 1 has not joined it"
    (folder / ERROR_FILE.format(0)).write_text(json.dumps(report))
    reason = why_it_failed(folder, 2, 2.0, 1, "", folder)
    assert "rank 1 was ending" in reason
    assert "rank 1 has not joined it" in reason

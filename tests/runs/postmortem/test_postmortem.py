"""Who is blamed? When a rank's time is up it ends a moment before the others, and their collectives fail.

And ranks that are ended because another failed are well.
"""

import json
import os
import traceback

import pytest

from dpbook.ranks.failure_files import ERROR, PROCESS, RESULT, STACK, cause_of_failure
from dpbook.runs.postmortem.rules import why_it_failed

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
    assert cause_of_failure(folder, 2, 2.0, {}, "").splitlines() == [
        "no result after 2 s; the ranks were at",
        f"  rank 0: line {line} of waits",
        "  rank 1: line 3 of hangs",
    ]


def test_where_a_failed_rank_was_is_told_by_its_error_and_not_by_how_it_was_ended(folder):
    fail(folder, 100.001)
    (folder / STACK.format(0)).write_text('Current thread 0x02:\n  File "worker.py", line 9 in main\n')
    assert "of waits" in cause_of_failure(folder, 2, 2.0, {}, "")


def test_an_error_before_the_time_was_up_is_the_cause(folder):
    fail(folder, 99.0)
    assert cause_of_failure(folder, 2, 2.0, {}, "").startswith("rank 0 failed first: RuntimeError: Connection closed")


def test_a_rank_that_is_ended_because_another_failed_did_not_run_out_of_time(folder):
    (folder / STACK.format(1)).write_text(DUMP.partition("\n")[2])
    fail(folder, 100.001)
    assert cause_of_failure(folder, 2, 2.0, {}, "").startswith("rank 0 failed first")


C10D = "/lib/site-packages/torch/distributed/distributed_c10d.py"
WAITS = f'Thread 0x02:\n  File "{C10D}", line 9 in barrier\n  File "train.py", line 7 in main\n'
COMPUTES = 'Thread 0x03:\n  File "train.py", line 5 in main\n'
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
CLOSED = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2451"


def of_three(folder, *, failed=(), ended=(), finished=(), starting=(), said="", before=(), kind="Error"):
    """What is told of three ranks: ``failed`` holds (rank, message), in the order of time, ``ended`` (rank, stack).

    ``starting``: who has not written down its process; ``before``: type and message of the errors in whose handling
    those of ``failed`` were raised.
    """
    for rank in range(3):
        (folder / STACK.format(rank)).touch()
        if rank not in starting:
            (folder / PROCESS.format(rank)).write_text(str(rank))
    for time, (rank, message) in enumerate(failed):
        trace = f'Traceback:\n  File "train.py", line 7, in main\n  File "{C10D}", line 9, in barrier\n{message}\n'
        report = {"time": time, "type": kind, "message": message, "traceback": trace, "before": before}
        (folder / ERROR.format(rank)).write_text(json.dumps(report))
    for rank, stack in ended:
        (folder / STACK.format(rank)).write_text(stack)
    for rank in finished:
        (folder / RESULT.format(rank)).touch()
    return why_it_failed(folder, 3, 9.0, 1, said).splitlines()[0]


def reported(rank, status):
    """How torchrun tells of a process."""
    return f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {status} (pid: {rank})\n"


WAITED = "in barrier, line 7 of main"
AT_LINE_5 = f"rank 1 never came: it was at line 5 of main; ranks 0, 2 were {WAITED}"


@pytest.mark.parametrize("waited", [TIMED_OUT, "Operation timed out!", "barrier timeout after 3000ms, key: a"])
def test_of_a_rank_that_was_elsewhere_when_another_waited_too_long_it_is_said(tmp_path, waited):
    assert of_three(tmp_path, failed=[(0, waited)], ended=[(1, COMPUTES), (2, WAITS)]) == AT_LINE_5


def test_also_where_another_lost_the_one_that_waited_too_long(tmp_path):
    assert of_three(tmp_path, failed=[(2, CLOSED), (0, TIMED_OUT)], ended=[(1, COMPUTES)]) == AT_LINE_5


KEY = [("KeyError", "'label'")]
OWN = ["label 17, but 10 classes", "the download timed out", "Connection to data closed"]


@pytest.mark.parametrize("own", OWN)
def test_an_error_of_its_own_is_the_cause_and_ranks_that_were_ended_are_not_blamed(tmp_path, own):
    said = of_three(tmp_path, failed=[(2, TIMED_OUT), (1, own)], ended=[(0, COMPUTES)])
    assert said == f"rank 1 failed first: Error: {own}"


def test_an_error_without_a_message_is_told_by_its_name(tmp_path):
    assert of_three(tmp_path, failed=[(1, "")], ended=[(0, WAITS), (2, WAITS)]) == "rank 1 failed first: Error"


def test_of_two_errors_of_their_own_the_first_is_told(tmp_path):
    assert of_three(tmp_path, failed=[(2, "a"), (0, "b")], ended=[(1, COMPUTES)]) == "rank 2 failed first: Error: a"


def test_the_error_of_a_process_that_loads_data_is_told_in_its_own_words(tmp_path):
    told = "Original Traceback (most recent call last):\n  File a\nKeyError: 'a'\n  File b\nKeyError: 'label'\n"
    caught = f"Caught KeyError in DataLoader worker process 0.\n{told}"
    said = of_three(tmp_path, failed=[(1, caught)], ended=[(0, WAITS), (2, WAITS)], kind="KeyError")
    assert said == "rank 1 failed first: KeyError: 'label' (in DataLoader worker process 0)"


def test_an_error_is_told_though_a_wait_failed_while_it_was_handled(tmp_path):
    said = of_three(tmp_path, failed=[(1, TIMED_OUT)], ended=[(0, WAITS), (2, WAITS)], before=KEY)
    assert said == "rank 1 failed first: KeyError: 'label'"


def test_an_error_is_told_though_the_program_answers_it_with_a_status(tmp_path):
    said = of_three(tmp_path, failed=[(1, "1")], ended=[(0, WAITS), (2, WAITS)], before=KEY, kind="SystemExit")
    assert said == "rank 1 failed first: KeyError: 'label'"


def test_what_a_program_makes_of_a_lost_connection_is_no_cause(tmp_path):
    said = of_three(tmp_path, failed=[(0, "gave up")], finished=[1], ended=[(2, WAITS)], before=[("Error", CLOSED)])
    assert said == f"rank 1 finished (status 0) while ranks 0, 2 were {WAITED}"


def test_a_killed_rank_is_told_before_what_the_others_lost(tmp_path):
    said = of_three(tmp_path, failed=[(2, CLOSED)], ended=[(0, COMPUTES)], said=reported(1, -9))
    assert said.startswith("rank 1 died: killed by SIGKILL (as the system does where memory runs out); the others were")


def test_a_rank_that_left_without_a_word_died(tmp_path):
    said = of_three(tmp_path, failed=[(2, CLOSED)], ended=[(0, COMPUTES)])
    assert said == "rank 1 died: it left with exit status 0; the others were ended"


def test_a_rank_that_had_to_be_killed_stopped_answering(tmp_path):
    said = f"Sending process 1 closing signal SIGTERM\n{reported(1, -9)}"
    found = of_three(tmp_path, failed=[(0, TIMED_OUT)], ended=[(2, WAITS)], said=said)
    assert found == f"rank 1 stopped answering: it had to be killed; ranks 0, 2 were {WAITED}"


def test_a_rank_that_comes_to_its_end_because_it_was_asked_to_is_not_blamed(tmp_path):
    said = "Sending process 1 closing signal SIGTERM\n"
    found = of_three(tmp_path, failed=[(0, TIMED_OUT)], finished=[1], ended=[(2, WAITS)], said=said)
    assert found == f"no rank is known to be at fault: ranks 0, 2 were {WAITED}"


@pytest.mark.parametrize(("asked", "at_fault"), [(2, 1), (0, 2)])
def test_nor_one_that_leaves_with_a_status_because_it_was_asked_to(tmp_path, asked, at_fault):
    said = f"Sending process {asked} closing signal SIGTERM\n"
    found = of_three(tmp_path, failed=[(2, "143"), (1, "1")], kind="SystemExit", ended=[(0, WAITS)], said=said)
    assert found.startswith(f"rank {at_fault} failed first: SystemExit: ")


def test_one_that_was_asked_to_end_alone_and_waited_in_vain_for_the_others_is_told(tmp_path):
    said = f"Sending process 0 closing signal SIGTERM\nSending process 2 closing signal SIGTERM\n{reported(1, 143)}"
    found = of_three(tmp_path, ended=[(0, COMPUTES), (1, WAITS), (2, WAITS)], said=said)
    assert (
        found
        == f"rank 1 ended after SIGTERM, as it was asked to: rank 0 was at line 5 of main; ranks 1, 2 were {WAITED}"
    )


def test_nor_one_that_was_ended_before_it_had_written_down_its_process(tmp_path):
    said = f"Sending process 0 closing signal SIGTERM\n{reported(0, -15)}"
    found = of_three(tmp_path, failed=[(1, "label 17")], ended=[(2, COMPUTES)], said=said, starting=[0])
    assert found == "rank 1 failed first: Error: label 17"


def test_whom_the_others_waited_for_is_named_and_not_one_that_had_finished(tmp_path):
    said = of_three(tmp_path, failed=[(0, TIMED_OUT)], finished=[2], ended=[(1, COMPUTES)])
    assert said == f"rank 1 never came: it was at line 5 of main; rank 0 was {WAITED}"


def test_ranks_that_waited_in_different_calls_are_told_with_their_calls(tmp_path):
    other = WAITS.replace("barrier", "all_reduce").replace("line 7", "line 8")
    said = of_three(tmp_path, failed=[(0, TIMED_OUT), (2, CLOSED)], ended=[(1, other)])
    assert said == (
        f"the ranks waited in different calls: ranks 0, 2 were {WAITED}; rank 1 was in all_reduce, line 8 of main"
    )


PREAMBLE = "[enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 8. Received data"


def test_what_gloo_says_of_sizes_is_told_and_not_who_was_aborted_by_it(tmp_path):
    said = of_three(tmp_path, failed=[(2, CLOSED)], ended=[(0, WAITS), (1, WAITS)], said=PREAMBLE + reported(0, -6))
    assert said == f"the ranks' calls do not match: ranks 0, 1, 2 were {WAITED}"


def test_a_rank_in_the_hands_of_a_library_is_where_the_program_called_it(tmp_path):
    asleep = f'Thread 0x03:\n  File "{os.__file__}", line 9 in wait\n' + COMPUTES.partition("\n")[2]
    assert of_three(tmp_path, failed=[(0, TIMED_OUT)], ended=[(1, asleep), (2, WAITS)]) == AT_LINE_5

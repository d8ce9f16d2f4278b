"""Does a rank take a signal that asks it to end, whatever it is doing, and not wait for ever for an update?"""

import os
import signal
import subprocess
import sys

import pytest

RANK = """
import sys, time
from pathlib import Path
from dpbook.runs.trainer import preemption
from dpbook.runs.launch.rank_evidence import RankEvidence
folder = Path(sys.argv.pop(1))
evidence = RankEvidence(folder, open(folder / "stack-0.txt", "a"))  # as the guard does
evidence.watch()
evidence.begin_rank(0)
preemption.TRAINING_GRACE_SECONDS = float(sys.argv[2])
rank = preemption.PreemptionListener(training=sys.argv[1] == "training")
rank.listen()
def wait():
    print("waits" if not rank.requested.is_set() else "asked before", flush=True)
    rank.requested.wait(60)
    if sys.argv[3:] == ["update"]:
        rank.acknowledged.set()
        time.sleep(2 * preemption.TRAINING_GRACE_SECONDS)
        print("saved", flush=True)
    else:
        time.sleep(60)
wait()
"""


def rank(folder, *arguments):
    env = {**os.environ, "DPBOOK_PREEMPTION_FILE": str(folder / "asked")}
    command = [sys.executable, "-c", RANK, str(folder), *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "number", "status", "output"),
    [
        (("training", "1.5", "update"), signal.SIGTERM, 0, "saved\n"),
        pytest.param(("training", "1.5", "update"), signal.SIGUSR1, 0, "saved\n", marks=pytest.mark.proof),
        (("training", "0.2"), signal.SIGTERM, 128 + signal.SIGTERM, ""),  # no update comes: another rank has failed
        pytest.param(("loading", "60"), signal.SIGTERM, 128 + signal.SIGTERM, "", marks=pytest.mark.proof),
    ],
)
def test_a_rank_that_is_asked_ends_after_the_update_or_where_none_comes(tmp_path, arguments, number, status, output):
    process = rank(tmp_path, *arguments)
    assert process.stdout.readline() == "waits\n"
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == output
    assert process.returncode == status
    dumped = (tmp_path / "stack-0.txt").read_text()
    assert ("in wait" in dumped) == (number == signal.SIGTERM)  # where it was, for the launcher to tell


@pytest.mark.processes
def test_a_rank_that_could_not_hear_it_yet_finds_word_of_it(tmp_path):
    (tmp_path / "asked").touch()
    process = rank(tmp_path, "training", "0.1", "update")
    assert process.communicate(timeout=60)[0] == "asked before\nsaved\n"

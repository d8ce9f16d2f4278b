"""However a launch of our program is ended: has it saved, does the same command go on, and is nothing left behind?

Three ranks over gloo. A run that goes on has the bits of one that was never ended.
"""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from dpbook.program import saved_steps
from tests.ranks import restarts

proof = pytest.mark.proof
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks in /proc"),
]
QUIET = ("--no-alone", "--no-predict")


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where a launch makes its temporary folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def ours(scratch):
    """What is left there of ours; torch keeps a cache of its own."""
    return sorted(path.name for path in scratch.glob("dpbook-*"))


def kept(folder):
    return saved_steps(folder / "runs/r")


def said_by(launch):
    return launch.communicate(timeout=300)[0]


def begin_and_wait(folder, *options):
    """A launch that has saved since it began."""
    before = kept(folder)
    launch = restarts.begin(folder, *QUIET, *options)
    restarts.wait_until(lambda: kept(folder) != before, launch)
    return launch


def test_a_rank_that_is_asked_to_end_makes_all_save_after_the_same_step(tmp_path, scratch):
    launch = begin_and_wait(tmp_path, "--steps", "100000")
    os.kill(restarts.process_of(tmp_path, rank=2), signal.SIGUSR1)
    said = said_by(launch)
    last = kept(tmp_path)[-1]
    assert launch.returncode == 128 + signal.SIGUSR1
    assert f"asked to end: saved after step {last:,} of 100,000" in said
    assert said.endswith(f"dpbook launch: checkpoint of step {last:,} kept; the same command goes on\n")
    assert len(kept(tmp_path)) == 2
    assert not list((tmp_path / "runs/r").glob(".*.partial"))
    assert not restarts.in_folder(tmp_path)
    assert ours(scratch) == []


@proof
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
@pytest.mark.parametrize("strategy", ["bucketed", "torch", "zero1"])
def test_a_launch_that_was_ended_by_a_signal_goes_on_to_the_bits_of_one_that_was_not(tmp_path, name, strategy):
    ended, whole = tmp_path / "ended", tmp_path / "whole"
    for folder in (ended, whole):
        folder.mkdir()
    number = signal.Signals[name]
    options = ("--strategy", strategy, "--save-every", "20")
    launch = begin_and_wait(ended, *options)
    launch.send_signal(number)
    said = said_by(launch)
    last = kept(ended)[-1]
    assert launch.returncode == 128 + number, said
    assert said.endswith(f"checkpoint of step {last:,} kept; the same command goes on\n")
    assert last % 20, "it has saved when it was asked to"
    said = said_by(again := restarts.begin(ended, *QUIET, *options))
    assert again.returncode == 0
    assert f"resumed after step {last} of {restarts.STEPS}" in said
    assert said_by(restarts.begin(whole, *QUIET, *options))
    assert restarts.same_bits(restarts.weights(ended), restarts.weights(whole))


@proof
def test_a_rank_that_hangs_does_not_keep_an_interrupt_from_ending_the_others(tmp_path, scratch):
    """The others wait for it inside an all-reduce, and never come to the update after which they would save."""
    launch = begin_and_wait(tmp_path, "--steps", "100000")
    os.kill(restarts.process_of(tmp_path, rank=1), signal.SIGSTOP)
    time.sleep(2)
    launch.send_signal(signal.SIGTERM)
    said = said_by(launch)
    assert launch.returncode == 128 + signal.SIGTERM
    assert f"checkpoint of step {kept(tmp_path)[-1]:,} kept" in said
    assert not restarts.in_folder(tmp_path)
    assert ours(scratch) == []


@proof
def test_a_second_launch_into_the_same_folder_is_refused_and_the_first_is_not_disturbed(tmp_path):
    first = begin_and_wait(tmp_path)
    second = restarts.begin(tmp_path, *QUIET)
    said = said_by(second)
    assert second.returncode == 1
    assert re.search(rf"refused: runs/r is locked by pid {first.pid} on host \S+, since", said)
    assert said_by(first)
    assert first.returncode == 0
    lines = (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()
    assert len(lines) == restarts.STEPS


@proof
def test_a_launch_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path):
    options = ("--save-every", "20")
    launch = begin_and_wait(tmp_path, *options)
    restarts.wait_until(lambda: len(kept(tmp_path)) == 2, launch)
    launch.send_signal(signal.SIGKILL)
    launch.communicate()
    restarts.wait_until(lambda: not restarts.in_folder(tmp_path))
    before, newest = kept(tmp_path)
    path = tmp_path / f"runs/r/checkpoint-{newest:08}.pt"
    path.write_bytes(path.read_bytes()[:5000])
    said = said_by(again := restarts.begin(tmp_path, *QUIET, *options))
    assert again.returncode == 0, said
    assert f"{path.relative_to(tmp_path)} cannot be read as a checkpoint" in said
    assert f"resumed after step {before} of {restarts.STEPS}" in said


ENDLESS = ("--steps", "100000", "--save-every", "3")
ENDS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGKILL", "rank-SIGKILL", "rank-SIGTERM", "rank-SIGUSR1", "raises")


@proof
@pytest.mark.timeout(1200)
def test_sixty_starts_however_ended_leave_nothing_running_and_no_folder(tmp_path, scratch):
    """At any time: while torchrun starts, while ranks load torch, while they train or save."""
    (tmp_path / "raises.py").write_text('import os\nif os.environ["RANK"] == "1":\n    raise ValueError("on purpose")')
    draw = random.Random()
    for start in range(60):
        how = ENDS[start % len(ENDS)]
        if how == "raises":
            launch = restarts.begin(tmp_path, "--", "raises.py", program=False)
        elif how == "rank-SIGUSR1":  # a rank that does not train yet takes no notice
            launch = begin_and_wait(tmp_path, *ENDLESS)
        else:
            launch = restarts.begin(tmp_path, *QUIET, *ENDLESS)
        time.sleep(draw.uniform(0.0, 10.0))
        kind, _, name = how.rpartition("SIG")
        if name and launch.poll() is None:
            process = restarts.process_of(tmp_path, rank=1) if kind else launch.pid
            os.kill(process or launch.pid, signal.Signals[f"SIG{name}"])
        launch.communicate(timeout=200)
        restarts.wait_until(lambda: not restarts.in_folder(tmp_path))
        assert len(ours(scratch)) <= 1, how  # of a launcher that was killed
    last = restarts.begin(tmp_path, "--", "raises.py", program=False)
    assert "rank 1 failed first: ValueError" in said_by(last)
    assert ours(scratch) == []
    assert not list((tmp_path / "runs/r").glob("*.damaged"))

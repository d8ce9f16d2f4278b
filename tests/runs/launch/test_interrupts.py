"""However a launch of our program is ended: has it saved, does the same command go on, and is nothing left behind?

Ranks over gloo, three in `make proof`. A run that goes on has the bits of one that was never ended.
"""

import functools
import os
import random
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpbook.runs.trainer import saved_steps
from tests.runs.launch import restarts, slurm

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


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=proof)])
def test_a_rank_that_is_asked_to_end_makes_all_save_after_the_same_step(tmp_path, scratch, world):
    launch = begin_and_wait(tmp_path, "--steps", "100000", "--nproc", str(world))
    os.kill(restarts.process_of(tmp_path, rank=world - 1), signal.SIGUSR1)
    said = said_by(launch)
    last = kept(tmp_path)[-1]
    assert launch.returncode == 128 + signal.SIGUSR1
    assert f"asked to end: saved after step {last:,} of 100,000" in said
    assert said.endswith(f"dpbook launch: checkpoint of step {last:,} kept; the same command goes on\n")
    assert len(kept(tmp_path)) == 2
    assert not list((tmp_path / "runs/r").glob(".*.partial"))
    assert not restarts.in_folder(tmp_path)
    assert ours(scratch) == []


ROWS = [("bucketed", name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")]
ROWS += [("torch", "SIGTERM"), ("zero1", "SIGUSR1")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run of a strategy that is not ended."""

    @functools.cache
    def train(strategy):
        folder = tmp_path_factory.mktemp("whole")
        assert said_by(launch := restarts.begin(folder, *QUIET, "--strategy", strategy))
        assert launch.returncode == 0
        return restarts.weights(folder)

    return train


@proof
@pytest.mark.parametrize(("strategy", "name"), ROWS)
def test_a_launch_that_was_ended_by_a_signal_goes_on_to_the_bits_of_one_that_was_not(tmp_path, whole, strategy, name):
    number, options = signal.Signals[name], ("--strategy", strategy)
    launch = begin_and_wait(tmp_path, *options)
    launch.send_signal(number)
    said = said_by(launch)
    last = kept(tmp_path)[-1]
    assert launch.returncode == 128 + number, said
    assert said.endswith(f"checkpoint of step {last:,} kept; the same command goes on\n")
    assert f"asked to end: saved after step {last} of {restarts.STEPS}" in said
    said = said_by(again := restarts.begin(tmp_path, *QUIET, *options))
    assert again.returncode == 0, said
    assert f"resumed after step {last} of {restarts.STEPS}" in said
    assert restarts.same_bits(restarts.weights(tmp_path), whole(strategy))


@proof
def test_a_slurm_job_saves_before_its_time_is_up_and_is_queued_again_until_it_is_done(tmp_path, whole):
    """Slurm sends the signal to the script alone; three nodes with one rank each share the folder."""
    options = [*restarts.OPTIONS[2:], *QUIET]
    job = slurm.submit(tmp_path, 3, *options)
    restarts.wait_until(lambda: kept(tmp_path), job)
    job.send_signal(signal.SIGUSR1)
    said = said_by(job)
    last = kept(tmp_path)[-1]
    assert job.returncode == 128 + signal.SIGUSR1, said
    assert f"asked to end: saved after step {last} of {restarts.STEPS}" in said
    assert slurm.requeued(tmp_path) == [str(os.getpid())]
    assert not restarts.in_folder(tmp_path)
    said = said_by(again := slurm.submit(tmp_path, 3, *options))
    assert again.returncode == 0, said
    assert f"resumed after step {last} of {restarts.STEPS}" in said
    assert len(slurm.requeued(tmp_path)) == 1
    assert restarts.same_bits(restarts.weights(tmp_path), whole("bucketed"))


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
    launch = begin_and_wait(tmp_path)
    restarts.wait_until(lambda: len(kept(tmp_path)) == 2, launch)
    launch.send_signal(signal.SIGKILL)
    launch.communicate()
    restarts.wait_until(lambda: not restarts.in_folder(tmp_path))
    before, newest = kept(tmp_path)
    path = tmp_path / f"runs/r/checkpoint-{newest:08}.pt"
    path.write_bytes(path.read_bytes()[:5000])
    said = said_by(again := restarts.begin(tmp_path, *QUIET))
    assert again.returncode == 0, said
    assert f"{path.relative_to(tmp_path)} cannot be read as a checkpoint" in said
    assert f"resumed after step {before} of {restarts.STEPS}" in said


ENDLESS = ("--steps", "100000", "--save-every", "3")
ENDS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGKILL", "rank-SIGKILL", "rank-SIGTERM", "rank-SIGUSR1", "raises")
AT_ONCE = 3
STARTS = 60


def hears(launch):
    """Whether a launch answers signals itself: SIGTERM is one that Python does not."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{launch.pid}/status").read_text())
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def end_somehow(folder, how, seconds):
    """A start in ``folder`` that is ended after some ``seconds``, or by itself; what it said."""
    if how == "raises":
        launch = restarts.begin(folder, "--", "raises.py", program=False)
    elif how == "rank-SIGUSR1":  # a rank that does not train yet takes no notice
        launch = begin_and_wait(folder, *ENDLESS)
    else:
        launch = restarts.begin(folder, *QUIET, *ENDLESS)
    time.sleep(seconds)
    # While the command line loads, the other signals end the process, but SIGINT raises an error that Python may drop.
    if how == "SIGINT":
        restarts.wait_until(lambda: launch.poll() is not None or hears(launch))
    if how != "raises" and launch.poll() is None:
        process = restarts.process_of(folder, rank=1) if how.startswith("rank-") else launch.pid
        os.kill(process or launch.pid, signal.Signals[how.removeprefix("rank-")])
    try:
        said = said_by(launch)
    except subprocess.TimeoutExpired as error:
        said = (error.output or b"").decode(errors="replace")
        launch.kill()
        pytest.fail(f"not ended by {how} after {seconds:.2f} s; it said:\n{said[-2000:]}")
    restarts.wait_until(lambda: not restarts.in_folder(folder))
    return said


@proof
@pytest.mark.timeout(1200)
def test_sixty_starts_however_ended_leave_nothing_running_and_no_folder(tmp_path, scratch):
    """At any time: while torchrun starts, while ranks load torch, while they train or save."""
    draw = random.Random()
    folders = [tmp_path / str(k) for k in range(AT_ONCE)]
    for folder in folders:
        folder.mkdir()
        (folder / "raises.py").write_text(
            'import os\nif os.environ["RANK"] == "1":\n    raise ValueError("on purpose")'
        )

    def worker(k):
        for start in range(k, STARTS, AT_ONCE):
            end_somehow(folders[k], ENDS[start % len(ENDS)], draw.uniform(0.0, 8.0))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(worker, range(AT_ONCE)))
    assert "rank 1 failed first, before it joined: ValueError" in end_somehow(folders[0], "raises", 0.0)
    assert ours(scratch) == []
    assert not list(tmp_path.glob("*/runs/r/*.damaged"))

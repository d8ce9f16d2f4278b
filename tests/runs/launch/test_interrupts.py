"""However a launch of the trainer is ended: has it saved, does the same command resume, and is nothing left behind?

All in `make proof`, with ranks over gloo. A run that resumes has the bits of one that was never ended.
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
    """Return the folder in which a launch makes its temporary folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def leftovers(scratch):
    """Return the folders of dpbook that are left; torch keeps a cache of its own there."""
    return sorted(path.name for path in scratch.glob("dpbook-*"))


def saved(folder):
    return saved_steps(folder / "runs/r")


def output_of(launch):
    return launch.communicate(timeout=300)[0]


def begin_and_wait(folder, *options):
    """Begin a launch and wait until it has saved."""
    before = saved(folder)
    launch = restarts.begin(folder, *QUIET, *options)
    restarts.wait_until(lambda: saved(folder) != before, launch)
    return launch


@proof  # tests/runs/trainer asks ranks without a launch to end, in every run
@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_that_receives_usr1_makes_all_save_after_the_same_step(tmp_path, scratch, world):
    launch = begin_and_wait(tmp_path, "--steps", "100000", "--nproc", str(world))
    os.kill(restarts.process_of(tmp_path, rank=world - 1), signal.SIGUSR1)
    output = output_of(launch)
    last = saved(tmp_path)[-1]
    assert launch.returncode == 128 + signal.SIGUSR1
    assert f"stopped: checkpoint saved after step {last:,} of 100,000" in output
    assert output.endswith(f"dpbook launch: checkpoint of step {last:,} saved; the same command resumes from it\n")
    assert len(saved(tmp_path)) == 2
    assert not list((tmp_path / "runs/r").glob(".*.partial"))
    assert not restarts.processes_in(tmp_path)
    assert leftovers(scratch) == []


ROWS = [("bucketed", name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")]
ROWS += [("torch", "SIGTERM"), ("zero1", "SIGUSR1")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function from a strategy to the weights of a run that is not ended."""

    @functools.cache
    def train(strategy):
        folder = tmp_path_factory.mktemp("whole")
        assert output_of(launch := restarts.begin(folder, *QUIET, "--strategy", strategy))
        assert launch.returncode == 0
        return restarts.weights(folder)

    return train


@proof
@pytest.mark.parametrize(("strategy", "name"), ROWS)
def test_a_launch_that_was_ended_by_a_signal_resumes_to_the_bits_of_one_that_was_not(tmp_path, whole, strategy, name):
    number, options = signal.Signals[name], ("--strategy", strategy)
    launch = begin_and_wait(tmp_path, *options)
    launch.send_signal(number)
    output = output_of(launch)
    last = saved(tmp_path)[-1]
    assert launch.returncode == 128 + number, output
    assert output.endswith(f"checkpoint of step {last:,} saved; the same command resumes from it\n")
    assert f"stopped: checkpoint saved after step {last} of {restarts.STEPS}" in output
    output = output_of(again := restarts.begin(tmp_path, *QUIET, *options))
    assert again.returncode == 0, output
    assert f"resumed after step {last} of {restarts.STEPS}" in output
    assert restarts.same_bits(restarts.weights(tmp_path), whole(strategy))


@proof
def test_a_slurm_job_saves_before_its_time_limit_and_is_requeued_until_it_is_finished(tmp_path, whole):
    """Slurm sends the signal to the script alone; three nodes with one rank each share the folder."""
    options = [*restarts.OPTIONS[2:], *QUIET]
    job = slurm.submit(tmp_path, 3, *options)
    restarts.wait_until(lambda: saved(tmp_path), job)
    job.send_signal(signal.SIGUSR1)
    output = output_of(job)
    last = saved(tmp_path)[-1]
    assert job.returncode == 128 + signal.SIGUSR1, output
    assert f"stopped: checkpoint saved after step {last} of {restarts.STEPS}" in output
    assert slurm.requeued(tmp_path) == [str(os.getpid())]
    assert not restarts.processes_in(tmp_path)
    output = output_of(again := slurm.submit(tmp_path, 3, *options))
    assert again.returncode == 0, output
    assert f"resumed after step {last} of {restarts.STEPS}" in output
    assert len(slurm.requeued(tmp_path)) == 1
    assert restarts.same_bits(restarts.weights(tmp_path), whole("bucketed"))


@proof
def test_a_rank_that_hangs_does_not_keep_an_interrupt_from_ending_the_others(tmp_path, scratch):
    """The others wait for it inside an all-reduce, and never reach the update after which they would save."""
    launch = begin_and_wait(tmp_path, "--steps", "100000")
    os.kill(restarts.process_of(tmp_path, rank=1), signal.SIGSTOP)
    time.sleep(2)
    launch.send_signal(signal.SIGTERM)
    output = output_of(launch)
    assert launch.returncode == 128 + signal.SIGTERM
    assert f"checkpoint of step {saved(tmp_path)[-1]:,} saved" in output
    assert not restarts.processes_in(tmp_path)
    assert leftovers(scratch) == []


@proof
def test_a_second_launch_into_the_same_folder_is_refused_and_the_first_is_not_disturbed(tmp_path):
    first = begin_and_wait(tmp_path)
    second = restarts.begin(tmp_path, *QUIET)
    output = output_of(second)
    assert second.returncode == 1
    assert re.search(rf"refused: runs/r is locked by pid {first.pid} on host \S+, since", output)
    assert output_of(first)
    assert first.returncode == 0
    lines = (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()
    assert len(lines) == restarts.STEPS


@proof
def test_a_launch_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path):
    launch = begin_and_wait(tmp_path)
    restarts.wait_until(lambda: len(saved(tmp_path)) == 2, launch)
    launch.send_signal(signal.SIGKILL)
    launch.communicate()
    restarts.wait_until(lambda: not restarts.processes_in(tmp_path))
    before, newest = saved(tmp_path)
    path = tmp_path / f"runs/r/checkpoint-{newest:08}.pt"
    path.write_bytes(path.read_bytes()[:5000])
    output = output_of(again := restarts.begin(tmp_path, *QUIET))
    assert again.returncode == 0, output
    assert f"{path.relative_to(tmp_path)} cannot be read as a checkpoint" in output
    assert f"resumed after step {before} of {restarts.STEPS}" in output


ENDLESS = ("--steps", "100000", "--save-every", "3")
ENDS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGKILL", "rank-SIGKILL", "rank-SIGTERM", "rank-SIGUSR1", "raises")
AT_ONCE = 3
STARTS = 60


def handles_signals(launch):
    """Return True if a launch handles signals itself: Python alone does not handle SIGTERM."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{launch.pid}/status").read_text())
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def end_by(event, folder, seconds):
    """Begin a launch in ``folder``, end it by ``event`` after some ``seconds``, and return its output."""
    if event == "raises":
        launch = restarts.begin(folder, "--", "raises.py", program=False)
    elif event == "rank-SIGUSR1":  # a rank that does not train yet takes no notice
        launch = begin_and_wait(folder, *ENDLESS)
    else:
        launch = restarts.begin(folder, *QUIET, *ENDLESS)
    time.sleep(seconds)
    # While the command line loads, the other signals end the process, but SIGINT raises an error that Python may drop.
    if event == "SIGINT":
        restarts.wait_until(lambda: launch.poll() is not None or handles_signals(launch))
    if event != "raises" and launch.poll() is None:
        process = restarts.process_of(folder, rank=1) if event.startswith("rank-") else launch.pid
        os.kill(process or launch.pid, signal.Signals[event.removeprefix("rank-")])
    try:
        output = output_of(launch)
    except subprocess.TimeoutExpired as error:
        output = (error.output or b"").decode(errors="replace")
        launch.kill()
        pytest.fail(f"not ended by {event} after {seconds:.2f} s; its output:\n{output[-2000:]}")
    restarts.wait_until(lambda: not restarts.processes_in(folder))
    return output


@proof
@pytest.mark.timeout(1200)
def test_sixty_launches_however_ended_leave_no_process_and_no_folder(tmp_path, scratch):
    """They are ended at any time: while torchrun starts, while ranks load torch, while they train or save."""
    draw = random.Random()
    folders = [tmp_path / str(k) for k in range(AT_ONCE)]
    for folder in folders:
        folder.mkdir()
        (folder / "raises.py").write_text(
            'import os\nif os.environ["RANK"] == "1":\n    raise ValueError("on purpose")'
        )

    def worker(k):
        for start in range(k, STARTS, AT_ONCE):
            end_by(ENDS[start % len(ENDS)], folders[k], draw.uniform(0.0, 8.0))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(worker, range(AT_ONCE)))
    assert "rank 1 failed first, before it joined the process group: ValueError" in end_by("raises", folders[0], 0.0)
    assert leftovers(scratch) == []
    assert not list(tmp_path.glob("*/runs/r/*.damaged"))

"""Is a run's folder kept from a second launch, and a run from options of another?"""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest

import dpbook.runs.launch
from dpbook.app import main
from dpbook.core.errors import DpbookError
from dpbook.runs.launch import LaunchResult
from dpbook.runs.trainer import Options, locked, metrics, run_folder
from dpbook.runs.trainer.__main__ import _resumed as describe_resume
from tests.cases import each

HOLDER = """
import time
from pathlib import Path
from dpbook.runs.trainer import locked
with locked(Path("r"), None, print):
    print("locked", flush=True)
    time.sleep(600)
"""


def quiet(text):
    raise AssertionError(text)


def enters(folder, meeting=None, say=quiet):
    try:
        with locked(folder, meeting, say):
            return True
    except DpbookError:
        return False


def test_a_folder_is_locked_by_a_process_that_is_named(tmp_path):
    with (
        locked(tmp_path / "r", None, quiet),
        pytest.raises(DpbookError) as refused,
        locked(tmp_path / "r", None, quiet),
    ):
        pass
    who = f"refused: {tmp_path / 'r'} is locked by pid {os.getpid()} on host {socket.gethostname()}, since 2"
    assert str(refused.value).startswith(who)
    assert enters(tmp_path / "r")


def test_the_nodes_of_one_launch_share_a_folder_and_no_other_enters(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "SETTLING_SECONDS", 0)
    with locked(tmp_path, "a:1", quiet):
        assert enters(tmp_path, "a:1")
        with locked(tmp_path, "a:1", quiet):
            assert enters(tmp_path, "a:1")
            assert not enters(tmp_path, "b:1")
            assert not enters(tmp_path)
        assert not enters(tmp_path)
    with locked(tmp_path, None, quiet):
        assert not enters(tmp_path, "a:1")


@pytest.mark.parametrize("content", ["", '{"meeting": "an earlier launch"}'])
def test_a_node_that_comes_while_another_writes_the_lock_waits_for_it(tmp_path, monkeypatch, content):
    """The other node has the lock for itself, and the file is empty or still that of an earlier launch."""
    lock = tmp_path / run_folder.LOCK_FILE
    lock.write_text(content)
    with lock.open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def write(seconds):
            lock.write_text('{"meeting": "a:1"}')
            fcntl.flock(other, fcntl.LOCK_SH)

        monkeypatch.setattr(run_folder.time, "sleep", write)
        assert enters(tmp_path, "a:1")
        monkeypatch.setattr(run_folder, "SETTLING_SECONDS", 0)
        assert not enters(tmp_path, "b:1")


@pytest.mark.processes
def test_a_launcher_that_is_killed_leaves_no_lock(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(DpbookError, match=f"locked by pid {holder.pid} on host"), locked(tmp_path / "r", None, quiet):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert enters(tmp_path / "r")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_on_a_disk_without_locks_nobody_is_kept_out_and_that_is_reported(tmp_path, monkeypatch, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    message = []
    assert enters(tmp_path, say=message.append)
    assert len(message) == 1
    assert message[0].startswith(f"warning: {tmp_path} cannot be locked ({os.strerror(number)})")


def earlier_run(folder, step=50, world=2, **options):
    """A folder as a run leaves it that has come to ``step`` and is not finished."""
    before = Options(out=str(folder), name="r", steps=100, width=64, **options)
    before.folder.mkdir(parents=True)
    (before.folder / f"checkpoint-{step:08}.pt").touch()
    (before.folder / metrics.DESCRIPTION).write_text(json.dumps({"options": asdict(before), "world": world}))
    return before.folder


@pytest.fixture
def relaunch(tmp_path, monkeypatch, capsys):
    """Launch the run in tmp_path/r once more; return its output and whether ranks were started."""

    def run(*arguments, nproc=2):
        started = []
        monkeypatch.setattr(
            dpbook.runs.launch,
            "launch",
            lambda spec, report, early_signals: started.append(spec) or LaunchResult(1, True),
        )
        where = ("--out", str(tmp_path), "--name", "r", "--width", "64", "--steps", "100")
        status = main(["launch", "--nproc", str(nproc), *where, *arguments])
        message = "".join(capsys.readouterr())
        assert started or status == (0 if "finished" in message else 1)
        return message, bool(started)

    return run


def test_the_same_command_goes_on(tmp_path, relaunch):
    earlier_run(tmp_path)
    assert relaunch()[1]
    more = ("--steps", "200", "--save-every", "7", "--no-predict", "--profile", "3")
    assert relaunch(*more)[1]  # none of them changes what is trained


def test_a_resumed_run_says_where_it_goes_on_and_what_has_changed():
    before, now = Options(steps=100), Options(steps=100, batch=16)
    saved = {"step": 50, "options": asdict(before), "world": 2}
    assert describe_resume(saved, SimpleNamespace(options=before, world=2)) == "resumed after step 50 of 100"
    lines = describe_resume(saved, SimpleNamespace(options=now, world=2)).splitlines()
    assert lines[:3] == [
        "resumed after step 50 of 100: its options have changed", "  option  before  now", "  batch   8       16",
    ]  # fmt: skip
    assert lines[3].startswith("  each rank's share of the global batch changes from 8 to 16 examples.")


def test_other_options_are_refused_with_what_differs_and_continued_by_a_word(tmp_path, relaunch):
    earlier_run(tmp_path, lr=0.001)
    message, started = relaunch("--lr", "0.01", "--batch", "16")
    assert not started
    assert message.splitlines()[-6:-1] == [
        f"dpbook launch: refused: {tmp_path / 'r'} contains a run with other options, at step 50",
        "  option  before  now",
        "  batch   8       16",
        "  lr      0.001   0.01",
        "  each rank's share of the global batch changes from 8 to 16 examples. The position in the data is counted in "
        "steps: it is that of a run with 16 from the start, so some examples are skipped or repeated",
    ]
    assert message.endswith("--name another begins a new run; --continue-changed resumes this one\n")
    assert relaunch("--lr", "0.01", "--batch", "16", "--continue-changed")[1]


@each(
    ("before", "now", "nproc", "message"),
    [
        ({"batch": 8}, ["--batch", "8"], 3, "the global batch changes from 16 to 24 examples"),
        ({"batch": 9}, ["--batch", "6"], 3, "the size of the global batch and the position in the data stay the same"),
        ({}, ["--seed", "1"], 2, "the order of the data changes from there on"),
        ({}, ["--strategy", "hook"], 2, "every rank keeps the optimizer's whole state, which is resumed"),
        ({"strategy": "naive"}, ["--strategy", "torch"], 2, "every rank keeps the optimizer's whole state"),
        ({"strategy": "zero1"}, ["--strategy", "zero1"], 3, "the moments of the sharded optimizer begin at zero"),
    ],
)
def test_what_becomes_of_data_and_state_is_reported(tmp_path_factory, relaunch, before, now, nproc, message):
    folder = tmp_path_factory.mktemp("runs")
    earlier_run(folder, **before)
    where = ("--out", str(folder), *now)
    assert message in relaunch(*where, nproc=nproc)[0]
    assert relaunch(*where, "--continue-changed", nproc=nproc)[1]


@each(
    ("before", "now", "message"),
    [
        ({}, ["--width", "128"], "another width: the weights in the checkpoint have other shapes"),
        ({}, ["--model", "cnn"], "another model: the weights"),
        ({}, ["--lora", "4"], "another lora: the weights"),
        (
            {},
            ["--strategy", "zero1"],
            "another strategy: zero1 keeps a shard of the optimizer's state on each rank, buc",
        ),
        ({"strategy": "zero1"}, ["--strategy", "torch"], "on each rank, torch all of it on all"),
    ],
)
def test_another_model_and_an_optimizer_kept_otherwise_are_never_continued(
    tmp_path_factory, relaunch, before, now, message
):
    folder = tmp_path_factory.mktemp("runs")
    earlier_run(folder, **before)
    for word in ([], ["--continue-changed"], ["--no-preflight"]):
        output, started = relaunch("--out", str(folder), *now, *word)
        assert not started
        assert message in output
        assert output.endswith("\n--name another begins a new run\n")


def test_fewer_steps_than_are_done_are_refused(tmp_path, relaunch):
    earlier_run(tmp_path)
    message, started = relaunch("--steps", "49", "--continue-changed")
    assert not started
    assert "already has 50 steps, more than --steps 49" in message


def test_a_finished_run_says_so_and_how_to_go_on(tmp_path, relaunch):
    folder = earlier_run(tmp_path, step=100)
    assert relaunch()[1]  # its report is missing
    (folder / metrics.REPORT).touch()
    message, started = relaunch()
    assert not started
    assert "is finished: it has its 100 steps; more --steps continue it, --name another begins a new run" in message
    assert relaunch("--steps", "101")[1]
    assert not (folder / metrics.REPORT).exists()  # it would be that of fewer steps


@pytest.mark.parametrize("content", ["", "[]", '{"options": 3, "world": 2}'])
def test_a_run_whose_options_are_unknown_is_continued_by_the_word_alone(tmp_path, relaunch, content):
    folder = earlier_run(tmp_path)
    (folder / metrics.DESCRIPTION).write_text(content)
    message, started = relaunch()
    assert not started
    assert "holds a run whose options cannot be read (run.json)" in message
    assert relaunch("--continue-changed")[1]


def test_a_folder_without_a_checkpoint_is_begun_anew(tmp_path, relaunch):
    (earlier_run(tmp_path) / "checkpoint-00000050.pt").unlink()
    assert relaunch("--width", "128")[1]


def test_a_locked_run_is_not_started(tmp_path, relaunch):
    with locked(tmp_path / "r", None, quiet):
        message, started = relaunch("--no-preflight")
    assert not started
    assert f"dpbook launch: refused: {tmp_path / 'r'} is locked by pid {os.getpid()} on host" in message
    assert relaunch()[1]

"""Is a run that hangs told from one that waits for a rank at work?"""

import json
import os
import subprocess
import sys
import time

import pytest

from dpbook.ranks.failure_files import BEAT, PROCESS, RESULT
from dpbook.runs.launch import hang_detector
from dpbook.runs.launch.hang_detector import HangWatch

IDLE, BUSY = (0.0, 0), (1e9, 0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three ranks, none of which has gone on for 100 s; ranks 0 and 2 wait in a collective, rank 1 is idle."""
    monkeypatch.setattr(hang_detector, "_used", lambda folder, rank: IDLE)
    for rank, limit in enumerate([1800.0, None, 1800.0]):
        beat(tmp_path, rank, limit)
        (tmp_path / PROCESS.format(rank)).write_text(str(os.getpid()))
    return tmp_path


def beat(folder, rank, limit, *, since=-100.0):
    (folder / BEAT.format(rank)).write_text(json.dumps({"since": time.time() + since, "limit": limit}))


def hangs(folder, *, patience=50.0, strict=False, later=100.0, monkeypatch):
    """Whether a run hangs that is looked at now and ``later`` seconds later."""
    watch, now = HangWatch(folder, range(3), patience, strict=strict), time.time()
    assert not watch.hangs()
    monkeypatch.setattr(hang_detector.time, "time", lambda: now + later)
    return watch.hangs()


def test_a_rank_that_is_idle_while_others_wait_is_a_hang_after_that_time(folder, monkeypatch):
    assert hangs(folder, monkeypatch=monkeypatch)


def test_and_not_before(folder, monkeypatch):
    assert not hangs(folder, later=49.0, monkeypatch=monkeypatch)


def test_a_rank_at_work_is_none(folder, monkeypatch):
    used = iter([IDLE, BUSY])
    monkeypatch.setattr(hang_detector, "_used", lambda folder, rank: next(used))
    assert not hangs(folder, monkeypatch=monkeypatch)


def test_nor_is_one_of_which_that_is_unknown(folder, monkeypatch):
    monkeypatch.setattr(hang_detector, "_used", lambda folder, rank: None)
    assert not hangs(folder, monkeypatch=monkeypatch)


def test_where_all_wait_they_wait_for_one_another(folder, monkeypatch):
    beat(folder, 1, 1800.0)
    assert hangs(folder, monkeypatch=monkeypatch)


def test_where_none_waits_they_have_their_reasons(folder, monkeypatch):
    for rank in range(3):
        beat(folder, rank, None)
    assert not hangs(folder, monkeypatch=monkeypatch)


def test_a_rank_that_has_gone_on_meanwhile_is_no_hang(folder, monkeypatch):
    beat(folder, 1, None, since=60.0)
    assert not hangs(folder, monkeypatch=monkeypatch)


@pytest.mark.parametrize("strict", [False, True])
def test_the_scripts_own_time_out_holds_unless_another_was_asked_for(folder, monkeypatch, strict):
    beat(folder, 2, 7200.0)
    assert hangs(folder, strict=strict, monkeypatch=monkeypatch) is strict


def test_a_rank_that_has_finished_is_waited_for_in_vain(folder, monkeypatch):
    monkeypatch.setattr(hang_detector, "_used", lambda folder, rank: None)
    (folder / RESULT.format(1)).touch()
    assert hangs(folder, monkeypatch=monkeypatch)


@pytest.mark.processes
@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="reads /proc")
@pytest.mark.parametrize("session", ["of its own", "the rank's"])
def test_what_a_rank_and_all_that_it_started_have_used_is_counted(tmp_path, session):
    inner = "import sys; open(sys.argv[1], 'wb').write(bytes(2**22)); print(flush=True); sys.stdin.read()"
    own = f"start_new_session={session == 'of its own'}"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}, sys.argv[1]], {own})"
    with subprocess.Popen(
        [sys.executable, "-c", outer, tmp_path / "file"],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        (tmp_path / PROCESS.format(0)).write_text(str(process.pid))
        assert process.stdout.read(1) == b"\n"
        computed, moved = hang_detector._used(tmp_path, 0)
        process.stdin.close()
    assert moved >= 2**22
    assert computed > 0

"""Do locks and temporary folders end with their process, however it ends?"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from dpbook.core import checkout, temporary_folder, try_lock

HOLDER = """
import time
from dpbook.core import temporary_folder
with temporary_folder("test") as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_lock_keeps_others_out_until_its_file_is_closed(tmp_path):
    one, two = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert try_lock(one)
    assert not try_lock(two)
    assert not try_lock(two, shared=True)
    os.close(one)
    assert try_lock(two, shared=True)
    three = os.open(tmp_path / "lock", os.O_RDWR)
    assert try_lock(three, shared=True)
    assert not try_lock(three)


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_temporary_folder_is_removed_at_the_end(scratch, error):
    try:
        with temporary_folder("test") as folder:
            (folder / "deep").mkdir()
            (folder / "deep/file").touch()
            assert folder.parent == scratch
            if error:
                raise error
    except ValueError:
        pass
    assert list(scratch.iterdir()) == []


@pytest.mark.processes
def test_what_a_killed_process_has_left_is_removed_and_what_a_living_one_uses_stays(scratch):
    env = {**os.environ, "PYTHONPATH": str(checkout.root()), "TMPDIR": str(scratch)}
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    killed, living = (holder.stdout.readline().strip() for holder in holders)
    (scratch / "dpbook-of-somebody-else").mkdir()
    holders[0].send_signal(signal.SIGKILL)
    holders[0].wait()
    assert os.path.exists(killed)
    with temporary_folder("test"):
        assert not os.path.exists(killed)
        assert os.path.exists(living)
    holders[1].kill()
    holders[1].wait()
    with temporary_folder("test"):
        pass
    assert [path.name for path in scratch.iterdir()] == ["dpbook-of-somebody-else"]
    for holder in holders:
        holder.stdout.close()


def test_a_folder_into_which_is_still_written_is_removed_all_the_same(scratch, monkeypatch):
    tries = iter([lambda *_, **__: None, shutil.rmtree])  # the first meets a file that has just come
    monkeypatch.setattr(shutil, "rmtree", lambda *given, **options: next(tries)(*given, **options))
    with temporary_folder("test"):
        pass
    assert not list(scratch.glob("dpbook-*"))

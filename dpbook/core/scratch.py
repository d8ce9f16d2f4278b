"""Locks that end with their process, and temporary folders that are removed even if their process is killed."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX, LOCK_NAME = "dpbook-", "held"
REMOVAL_TIMEOUT = 2.0
"""Seconds of trying to remove a folder."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file for this process without waiting; return False if another process has the lock.

    The lock ends with the process. Raises `OSError` on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Yield a folder that is removed at the end. Folders of killed processes are removed at the beginning."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
    lock = os.open(folder / f".{LOCK_NAME}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):  # without locks no process can tell which others have been killed
            try_lock(lock)
            os.rename(folder / f".{LOCK_NAME}", folder / LOCK_NAME)  # locked before it is visible to others
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, even if a process that has just been killed still writes into it."""
    deadline = time.monotonic() + REMOVAL_TIMEOUT
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK_NAME}"):
        with suppress(OSError):  # of another user, or removed meanwhile
            descriptor = os.open(lock, os.O_RDWR)
            try:
                if try_lock(descriptor):
                    shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)

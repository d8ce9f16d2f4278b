"""Locks that end with their process, and temporary folders that outlive no process for long."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX, HELD = "dpbook-", "held"
PATIENCE = 2.0
"""Seconds for which a folder is tried to be removed."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file for this process, without waiting; False if another has it.

    It ends with the process, however that ends. Raises `OSError` on a disk that knows no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A folder that is removed at the end. What processes that were killed have left is removed at the beginning."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
    held = os.open(folder / f".{HELD}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):  # on a disk that knows no locks nobody can say who has been killed
            try_lock(held)
            os.rename(folder / f".{HELD}", folder / HELD)  # locked before anybody sees it
        yield folder
    finally:
        _remove(folder)
        os.close(held)


def _remove(folder: Path) -> None:
    """Also where a process that has just been killed still writes into it."""
    until = time.monotonic() + PATIENCE
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    for held in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{HELD}"):
        with suppress(OSError):  # another user's, or gone meanwhile
            descriptor = os.open(held, os.O_RDWR)
            try:
                if try_lock(descriptor):
                    shutil.rmtree(held.parent, ignore_errors=True)
            finally:
                os.close(descriptor)

"""Folder of a run: its checkpoints by step, and a lock that admits one launch at a time.

Loads no torch.
"""

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.core import DpbookError, try_lock
from dpbook.runs.trainer.metrics import DESCRIPTION

KEEP = 2
"""Number of checkpoints that are kept: the newest, and the previous one in case the newest is damaged."""
_COMPLETE = re.compile(r"checkpoint-(\d{8})\.pt")


def checkpoint(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"checkpoint-{step:08}.pt"


def steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints, from the oldest to the newest."""
    matches = (_COMPLETE.fullmatch(path.name) for path in folder.glob("checkpoint-*.pt"))
    return sorted(int(match[1]) for match in matches if match)


@dataclass(frozen=True)
class EarlierRun:
    """Run that can be resumed.

    Attributes:
        step: step of the newest checkpoint.
        options: options of the run, or None if its description cannot be read.
        world: number of ranks, or 0 if its description cannot be read.
    """

    step: int
    options: dict[str, Any] | None
    world: int


def earlier_run(folder: Path) -> EarlierRun | None:
    """Return the run in ``folder``, or None if it has no complete checkpoint to resume from."""
    saved = steps(folder)
    if not saved:
        return None
    try:
        about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return EarlierRun(saved[-1], dict(about["options"]), int(about["world"]))
    except (OSError, ValueError, TypeError, KeyError):
        return EarlierRun(saved[-1], None, 0)


LOCK_FILE = ".lock"


@contextmanager
def locked(folder: Path, meeting: str | None, report: Callable[[str], None]) -> Iterator[None]:
    """Lock the ``folder`` of a run against other launches; create it if it does not exist.

    The launchers of one launch on several nodes pass the same ``meeting`` and share the lock. The lock ends with the
    process, even if it is killed or its host fails. Raises `DpbookError` if another launch has the lock. On a file
    system without locks, ``report`` receives a warning and no launch is excluded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            _take(folder, descriptor, meeting)
        except OSError as error:
            report(f"warning: {folder} cannot be locked ({error.strerror}): take care that no other launch uses it")
        yield
    finally:
        os.close(descriptor)


def _take(folder: Path, descriptor: int, meeting: str | None) -> None:
    if try_lock(descriptor):
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T"), "meeting": meeting}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        if meeting is None or try_lock(descriptor, shared=True):
            return
    holder = _holder(descriptor)
    if meeting is None or holder.get("meeting") != meeting or not try_lock(descriptor, shared=True):
        pid, host, since = (holder.get(name, "?") for name in ("pid", "host", "since"))
        raise DpbookError(
            f"refused: {folder} is locked by pid {pid} on host {host}, since {since}; "
            "wait for its end, or take another --name"
        )


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:  # another process is writing it
        return {}
    return content if isinstance(content, dict) else {}

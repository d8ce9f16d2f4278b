"""The folder of a run: its checkpoints by step, and a lock that lets one launch at a time write into it.

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
"""Checkpoints: the newest, and the one before, in case that one is damaged."""
_COMPLETE = re.compile(r"checkpoint-(\d{8})\.pt")


def checkpoint(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"checkpoint-{step:08}.pt"


def steps(folder: Path) -> list[int]:
    """The steps of the complete checkpoints, from the oldest to the newest."""
    found = (_COMPLETE.fullmatch(path.name) for path in folder.glob("checkpoint-*.pt"))
    return sorted(int(match[1]) for match in found if match)


@dataclass(frozen=True)
class Earlier:
    """A run that can be continued: its newest ``step``, its ``options``, and how many ranks it had.

    ``options`` are None where its description cannot be read; ``world`` is 0 then.
    """

    step: int
    options: dict[str, Any] | None
    world: int


def earlier(folder: Path) -> Earlier | None:
    """The run in ``folder``; None where there is no complete checkpoint, and so nothing to continue."""
    done = steps(folder)
    if not done:
        return None
    try:
        about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return Earlier(done[-1], dict(about["options"]), int(about["world"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Earlier(done[-1], None, 0)


FILE = ".lock"


@contextmanager
def locked(folder: Path, meeting: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Keep other launches out of the ``folder`` of a run; it is made if need be.

    The launchers of one launch on several nodes name the same ``meeting``, and share the folder. The lock ends with the
    process, also with one that is killed, or whose host is lost. Raises `DpbookError` if another launch has it. Where
    the disk knows no locks that is told, and nobody is kept out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            _take(folder, descriptor, meeting)
        except OSError as error:
            say(f"warning: {folder} cannot be locked ({error.strerror}): take care that no other launch uses it")
        yield
    finally:
        os.close(descriptor)


def _take(folder: Path, descriptor: int, meeting: str | None) -> None:
    if try_lock(descriptor):
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T"), "meeting": meeting}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(who).encode(), 0)
        if meeting is None or try_lock(descriptor, shared=True):
            return
    holder = _holder(descriptor)
    if meeting is None or holder.get("meeting") != meeting or not try_lock(descriptor, shared=True):
        who, where, since = (holder.get(name, "?") for name in ("pid", "host", "since"))
        raise DpbookError(
            f"refused: {folder} is locked by pid {who} on host {where}, since {since}; "
            "wait for its end, or take another --name"
        )


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:  # it is just being written
        return {}
    return found if isinstance(found, dict) else {}

"""The best result of each task, kept in the reader's workbook: ``workbook/progress.json``.

The workbook is the nearest folder of that name above the current one; elsewhere nothing is kept.
"""

import itertools
import json
import os
from pathlib import Path

from filelock import FileLock

from dpbook.classroom.tasks.definition import Task
from dpbook.classroom.tasks.load_tasks import list_tasks
from dpbook.classroom.tasks.progress_map import Progress
from dpbook.core import write_atomically

WORKBOOK = "workbook"
FILE = "progress.json"
FORMAT = "dpbook.progress"
VERSION = 1
PATIENCE = 10.0
"""Seconds to wait for another kernel that records."""


def progress() -> Progress:
    """The reader's best points, task by task; none where no workbook is."""
    file = _file()
    try:
        best = {} if file is None else _parse(file.read_bytes())
    except (OSError, ValueError):  # `record` moves it aside and says so
        best = {}
    return Progress(tuple(list_tasks()), best)


def record(task: Task, points: int) -> tuple[str, ...]:
    """Keep ``points`` if they are the best so far. Returns what the reader should know, usually nothing.

    A file that cannot be read is moved aside, never overwritten. Several kernels may record at once.
    """
    file = _file()
    if file is None:
        return ()
    try:
        with FileLock(file.with_name(f".{FILE}.lock"), PATIENCE):
            best, note = _read(file)
            if points > best.get(task.id, -1):
                stored = {"format": FORMAT, "version": VERSION, "best": {**best, task.id: points}}
                write_atomically(file, (json.dumps(stored, indent=1, sort_keys=True) + "\n").encode())
    except OSError as error:
        return (f"your points could not be saved: {error.strerror or type(error).__name__}",)
    return note


def _file() -> Path | None:
    here = Path.cwd()
    return next((folder / FILE for folder in (here, *here.parents) if folder.name == WORKBOOK), None)


def _read(file: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """The points in ``file``; an unreadable one is moved aside, and a note says where to."""
    try:
        return _parse(file.read_bytes()), ()
    except FileNotFoundError:
        return {}, ()
    except ValueError as error:
        names = (file.with_name(f"{file.stem}.unreadable-{n}{file.suffix}") for n in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        os.replace(file, aside)
        return {}, (f"{FILE} {error}; it is now {aside.name}, and a new one was begun",)


def _parse(content: bytes) -> dict[str, int]:
    """The points in a file. Raises `ValueError` saying what is wrong with it."""
    try:
        stored = json.loads(content)
    except ValueError:
        raise ValueError("is damaged") from None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError("is no record of progress")
    if stored.get("version") != VERSION:
        raise ValueError("was written by another version of dpbook")
    best = stored.get("best")
    if not isinstance(best, dict) or any(type(points) is not int for points in best.values()):
        raise ValueError("is damaged")
    return best

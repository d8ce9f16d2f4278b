"""Progress of a reader: the best points of each task, and a map of the book's chapters with them.

They are kept in the reader's workbook, ``workbook/progress.json``, which is the nearest folder of that name above the
current one. Elsewhere nothing is kept.
"""

import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from filelock import FileLock

from dpbook.classroom.tasks.load_tasks import Task, list_tasks
from dpbook.core import DpbookError, checkout, palette, parse, plural, render_page, write_atomically

BAR = 20
"""Characters of a full bar in text."""


@dataclass(frozen=True)
class ChapterTasks:
    """The tasks of one chapter; an optional chapter has none.

    ``label`` is that of the chapter, such as "05" or "12b". ``title`` and links, which are relative to their folder,
    are "" where there are none. ``best`` has the points of each task, None for one never checked.
    """

    label: str
    title: str
    chapter: str
    exercises: str
    tasks: tuple[Task, ...]
    best: tuple[int | None, ...]

    @property
    def points(self) -> int:
        """Points earned so far."""
        return sum(best or 0 for best in self.best)

    @property
    def possible(self) -> int:
        """Points of all its tasks."""
        return sum(task.points for task in self.tasks)

    @property
    def state(self) -> str:
        """``done``, ``begun`` or ``open``; ``no exercise`` without tasks."""
        if not self.tasks:
            return "no exercise"
        if self.points == self.possible:
            return "done"
        return "open" if set(self.best) == {None} else "begun"

    @property
    def lines(self) -> list[str]:
        """One line of text per task."""
        pairs = zip(self.tasks, self.best, strict=True)
        return [f"{t.id} {t.title}: {'–' if best is None else best} of {t.points}" for t, best in pairs]

    def in_text(self, width: int) -> str:
        """One line, with ``width`` characters for the title."""
        name = f"{self.label:3} {self.title:{width}}"
        if not self.tasks:
            return f"{name}  {self.state}"
        full = BAR * self.points // self.possible
        earned = f"{self.points:>2} of {self.possible:>2}"
        return f"{name}  {'█' * full}{'░' * (BAR - full)}  {earned}  {self.state}"


@dataclass(frozen=True)
class Progress:
    """Every task of the book with the best points so far; ``best`` has no entry for one never checked."""

    tasks: tuple[Task, ...]
    best: Mapping[str, int]

    @cached_property
    def stretches(self) -> tuple[ChapterTasks, ...]:
        """The chapters that have tasks, and the optional ones, in order."""
        chapters = _chapters()
        optional = {label for label, chapter in chapters.items() if chapter.is_optional}
        grouped = {f"{n:02}": list(tasks) for n, tasks in groupby(self.tasks, lambda task: task.chapter)}
        return tuple(
            ChapterTasks(label, *_place(chapters.get(label)), *self._results(grouped.get(label, [])))
            for label in sorted({*grouped, *optional})
        )

    def _results(self, tasks: Iterable[Task]) -> tuple[tuple[Task, ...], tuple[int | None, ...]]:
        listed = tuple(tasks)
        return listed, tuple(min(self.best[t.id], t.points) if t.id in self.best else None for t in listed)

    @property
    def headline(self) -> str:
        """Sum of the points, in one line."""
        points, possible = (sum(getattr(s, name) for s in self.stretches) for name in ("points", "possible"))
        states = [stretch.state for stretch in self.stretches if stretch.tasks]
        return f"{points} of {possible} points; {states.count('done')} of {plural(len(states), 'chapter')} done"

    def __repr__(self) -> str:
        width = max((len(stretch.title) for stretch in self.stretches), default=0)
        return "\n".join([*(stretch.in_text(width) for stretch in self.stretches), self.headline])

    def _repr_html_(self) -> str:
        return render_page("progress.html", progress=self, palette=palette, plural=plural)


def _chapters() -> dict[str, checkout.Chapter]:
    """Return the chapters by their labels; none where dpbook is installed without them."""
    try:
        return {chapter.label: chapter for chapter in checkout.chapters()}
    except DpbookError:
        return {}


def _place(chapter: checkout.Chapter | None) -> tuple[str, str, str]:
    """Return a chapter's title, and where its notebook and its exercises are, seen from the folder of either."""
    if chapter is None:
        return "", "", ""
    name = chapter.path.name
    has_exercises = (checkout.book() / "exercises" / name).is_file()
    return chapter.title, f"../chapters/{name}", f"../exercises/{name}" if has_exercises else ""


WORKBOOK = "workbook"
FILE = "progress.json"
FORMAT = "dpbook.progress"
VERSION = 1
PATIENCE = 10.0
"""Seconds to wait for another kernel that records."""


def progress() -> Progress:
    """Return the reader's best points, task by task; none where no workbook is."""
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
        return (f"cannot save your points: {error.strerror or type(error).__name__}",)
    return note


def _file() -> Path | None:
    here = Path.cwd()
    return next((folder / FILE for folder in (here, *here.parents) if folder.name == WORKBOOK), None)


def _read(file: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the points in ``file``; an unreadable one is moved aside, and a note says where to."""
    try:
        return _parse(file.read_bytes()), ()
    except FileNotFoundError:
        return {}, ()
    except ValueError:
        names = (file.with_name(f"{file.stem}.unreadable-{n}{file.suffix}") for n in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        os.replace(file, aside)
        return {}, (f"{FILE} is damaged or from another version; renamed to {aside.name}, started a new one",)


def _parse(content: bytes) -> dict[str, int]:
    """Return the points in a file. Raises `ValueError` for one that this version of dpbook has not written."""
    best = parse(content.decode(), FORMAT, VERSION).get("best")
    if not isinstance(best, dict) or any(type(points) is not int for points in best.values()):
        raise ValueError("no points by task")
    return best

"""Progress of a reader: the best points of each task, and a map of the book's chapters with them.

They are kept in the reader's workbook, ``workbook/progress.json``, which is the nearest folder of that name above the
current one. Elsewhere nothing is kept.
"""

import itertools
import json
import os
from contextlib import suppress
from dataclasses import dataclass
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
        bar = ("█" * (BAR * self.points // self.possible)).ljust(BAR, "░")
        return f"{name}  {bar}  {self.points:>2} of {self.possible:>2}  {self.state}"


@dataclass(frozen=True)
class Progress:
    """Every task of the book with the best points so far, chapter by chapter, the optional ones among them."""

    stretches: tuple[ChapterTasks, ...]

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
    chapters: dict[str, checkout.Chapter] = {}
    with suppress(DpbookError):  # dpbook may be installed without chapters
        chapters = {chapter.label: chapter for chapter in checkout.chapters()}
    tasks: dict[str, list[Task]] = {label: [] for label, chapter in chapters.items() if chapter.is_optional}
    for task in list_tasks():
        tasks.setdefault(f"{task.chapter:02}", []).append(task)
    stretches = []
    for label in sorted(tasks):
        points = (min(best[task.id], task.points) if task.id in best else None for task in tasks[label])
        title = chapter = exercises = ""
        if label in chapters:
            title, name = chapters[label].title, chapters[label].path.name
            chapter = f"../chapters/{name}"
            exercises = f"../exercises/{name}" if (checkout.book() / "exercises" / name).is_file() else ""
        stretches.append(ChapterTasks(label, title, chapter, exercises, tuple(tasks[label]), tuple(points)))
    return Progress(tuple(stretches))


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

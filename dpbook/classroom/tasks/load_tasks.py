"""Tasks of the book and their hints, declared in each chapter's ``tasks.toml``.

Beside it lies the ``judge.py`` whose functions it names. Listing tasks imports no checks: those of a chapter are
imported when one of its tasks is requested. Hints open one at a time.
"""

import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from dpbook.classroom.tasks.answer import Answer
from dpbook.classroom.tasks.report import ParResult, marked
from dpbook.core import InvalidArgument, check_int, check_type, plural

Run = Callable[[Answer, np.random.Generator], str | ParResult | None]
ID = re.compile(r"[0-9]{2}\.[1-9][0-9]*")


@dataclass(frozen=True)
class Check:
    """One thing that is asked of an answer, worth ``points``.

    ``run(answer, rng)`` gets the answer's values through `call` or `value` and returns if they are right (with a note
    to show, if it likes) or raises `Wrong`, which the functions of `expect` do. ``why`` says why it matters.
    ``seconds``: that the answer may take in all, where that is more than the usual `answer.CHECK_SECONDS`.
    """

    name: str
    points: int
    why: str
    run: Run
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_int("points", self.points, 1)
        _check_texts(name=self.name, why=self.why)
        if self.seconds is not None and not (type(self.seconds) in (int, float) and 0 < self.seconds < math.inf):
            raise InvalidArgument("seconds", self.seconds, "a finite number above 0")


@dataclass(frozen=True)
class Task:
    """A graded task of an exercise.

    ``id`` is chapter and number, ``"05.1"``; ``answer`` is the name of the learner's function or variable.
    ``write_your_own`` names what the library has that would solve it, and that the answer cannot call. With
    ``none_allowed`` the answer may return None, which is then not reported as a missing return.
    """

    id: str
    title: str
    answer: str
    checks: Sequence[Check]
    hints: Sequence[str] = ()
    write_your_own: Sequence[str] = ()
    none_allowed: bool = False

    def __post_init__(self) -> None:
        _check_texts(id=self.id, title=self.title, answer=self.answer)
        if not ID.fullmatch(self.id):
            raise InvalidArgument("id", self.id, "two digits of the chapter, a dot and a number, as in '05.1'")
        if not self.answer.isidentifier():
            raise InvalidArgument("answer", self.answer, "a name in Python")
        names = [check.name for check in self.checks]
        if not names or len(set(names)) < len(names):
            raise InvalidArgument("checks", names, "one or more, each with a name of its own")
        check_type("hints", self.hints, (list, tuple), "a list of sentences")
        check_type("write_your_own", self.write_your_own, (list, tuple), "a list of names in Python")
        for name in ("hints", "write_your_own"):
            for text in getattr(self, name):
                _check_texts(**{name: text})

    @property
    def chapter(self) -> int:
        """The chapter that the task belongs to."""
        return int(self.id[:2])

    @property
    def points(self) -> int:
        """Sum of the points of its checks."""
        return sum(check.points for check in self.checks)

    @property
    def answer_cell(self) -> str:
        """Grade id of the cell that holds the answer."""
        return f"answer-{self.id.replace('.', '-')}"

    @property
    def check_cell(self) -> str:
        """Grade id of the cell that checks it."""
        return f"check-{self.id.replace('.', '-')}"


def _check_texts(**texts: Any) -> None:
    """Raise `InvalidArgument` for a value that is no string, or an empty one."""
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgument(name, text, "some text")


PLACE = "dpbook.book.ch{:02}"
"""The package that holds the ``tasks.toml`` and ``judge.py`` of the chapter with this number."""

_registered: dict[str, Task] = {}


def task(id: str) -> Task:
    """Return the task of this id, ready to judge. Raises `InvalidArgument`, listing the known ones."""
    if isinstance(id, str) and ID.fullmatch(id):
        _load(int(id[:2]))
        if id in _registered:
            for check in _registered[id].checks:
                if isinstance(check.run, LazyCheck):
                    check.run.function()  # a name that is none must not look like a fault of the answer
            return _registered[id]
    known = ", ".join(found.id for found in list_tasks())
    raise InvalidArgument("task", id, f"one of {known}" if known else "the id of a task, but there are none")


def list_tasks(chapter: int | None = None) -> list[Task]:
    """Return all tasks in order, or those of one chapter. The sum of their ``points`` is what the chapter is worth."""
    for number in range(100) if chapter is None else (chapter,):
        _load(number)
    found = sorted(_registered.values(), key=lambda t: (t.chapter, int(t.id[3:])))
    return [t for t in found if chapter is None or t.chapter == chapter]


@cache
def _load(chapter: int) -> None:
    """Register what the chapter declares, if anything; once."""
    folders = PLACE.format(chapter).split(".")
    file = files(folders[0]).joinpath(*folders[1:], "tasks.toml")
    if file.is_file():
        for new in parse(file.read_text(encoding="utf-8"), chapter):
            _registered[new.id] = new


def parse(text: str, chapter: int) -> list[Task]:
    """Return the tasks that a chapter's ``tasks.toml`` declares.

    Raises `InvalidArgument`, naming file, task and check, for anything but well-formed tasks of this chapter.
    """
    file = place = f"ch{chapter:02}/tasks.toml"
    found: list[Task] = []
    try:
        for table in tomllib.loads(text)["task"]:
            place = of_task = f"{file}: task {table.get('id', table.get('title'))}"
            checks = []
            for declared in table.pop("check"):
                place = f"{of_task}: check {declared.get('name')!r}"
                run = LazyCheck(f"{PLACE.format(chapter)}.judge", declared["run"], place)
                checks.append(Check(**{**declared, "run": run}))
                place = of_task
            found.append(Task(**table, checks=checks))
            place = file
        ids = [new.id for new in found]
        for id in ids:
            if ids.count(id) > 1 or id[:2] != f"{chapter:02}":
                raise InvalidArgument("id", id, f"one that begins with {chapter:02} and that no other task has")
    except InvalidArgument as error:
        raise InvalidArgument(f"{place}: {error.name}", error.value, error.expected) from None
    except KeyError as error:
        raise InvalidArgument(f"{place}: {error.args[0]}", None, "given") from None
    except (TypeError, AttributeError, tomllib.TOMLDecodeError) as error:
        form = "a table for each task, with the fields of `Task` and `Check`"
        raise InvalidArgument(place, str(error), form) from None
    return found


@dataclass(frozen=True)
class LazyCheck:
    """A check's function, given by name: its module is imported when the function is first called."""

    module: str
    name: str
    place: str

    def function(self) -> Run:
        """Return the function itself. Raises `InvalidArgument`, naming the check, if the module has none."""
        found: Run | None = getattr(import_module(self.module), str(self.name), None)
        if not callable(found):
            raise InvalidArgument(f"{self.place}: run", self.name, f"the name of a function in {self.module}")
        return found

    def __call__(self, answer: Answer, rng: np.random.Generator) -> str | ParResult | None:
        return self.function()(answer, rng)


_opened: dict[str, int] = {}  # by task; lasts as long as the kernel


class Hints(NamedTuple):
    """The hints of a task that are open."""

    task: Task
    opened: int

    @property
    def headline(self) -> str:
        """Numbers of open and remaining hints, in one line."""
        if not self.task.hints:
            return f"Task {self.task.id} has no hints."
        left = len(self.task.hints) - self.opened
        more = f'{left} left, hint("{self.task.id}") opens the next' if left else "these are all"
        return f"Task {self.task.id}, {plural(self.opened, 'hint')} of {len(self.task.hints)} opened: {more}."

    def __repr__(self) -> str:
        shown = self.task.hints[: self.opened]
        return "\n".join([self.headline, *(f"  {number}. {text}" for number, text in enumerate(shown, start=1))])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{marked(text)}</li>" for text in self.task.hints[: self.opened])
        return f"<div><p>{marked(self.headline)}</p><ol>{items}</ol></div>"


def hint(task_id: str) -> Hints:
    """Open the next hint of a task and return all that are open. Raises `InvalidArgument` for an unknown task."""
    found = task(task_id)
    _opened[task_id] = min(_opened.get(task_id, 0) + 1, len(found.hints))
    return Hints(found, _opened[task_id])

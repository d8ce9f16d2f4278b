"""Tasks: what is asked, how it is judged, and the register of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

import numpy as np

from dpbook.errors import InvalidArgument, check_int
from dpbook.grading import tasks as _package
from dpbook.grading.answer import Answer

Run = Callable[[Answer, np.random.Generator], str | None]
_ID = re.compile(r"[0-9]{2}\.[1-9][0-9]*")


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
        for name in ("name", "why"):
            if not getattr(self, name).strip():
                raise InvalidArgument(name, getattr(self, name), "a sentence")


@dataclass(frozen=True)
class Task:
    """A graded task of an exercise.

    ``id`` is chapter and number, ``"05.1"``; ``answer`` is the name of the learner's function or variable.
    """

    id: str
    title: str
    answer: str
    checks: Sequence[Check]
    hints: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise InvalidArgument("id", self.id, "two digits of the chapter, a dot and a number, as in '05.1'")
        if not self.answer.isidentifier():
            raise InvalidArgument(f"answer of task {self.id}", self.answer, "a name in Python")
        names = [check.name for check in self.checks]
        if not names or len(set(names)) < len(names):
            raise InvalidArgument(f"checks of task {self.id}", names, "one or more, each with a name of its own")

    @property
    def chapter(self) -> int:
        """The chapter that the task belongs to."""
        return int(self.id[:2])

    @property
    def points(self) -> int:
        """The sum over its checks."""
        return sum(check.points for check in self.checks)

    @property
    def answer_cell(self) -> str:
        """Grade id of the cell that holds the answer."""
        return f"answer-{self.id.replace('.', '-')}"

    @property
    def check_cell(self) -> str:
        """Grade id of the cell that checks it."""
        return f"check-{self.id.replace('.', '-')}"


_registered: dict[str, Task] = {}


def register(new: Task) -> Task:
    """Add a task to those that `check` knows, and return it. Raises `InvalidArgument` if its id is taken."""
    if new.id in _registered:
        raise InvalidArgument("id", new.id, "an id that no other task has")
    _registered[new.id] = new
    return new


def task(id: str) -> Task:
    """The task of this id. Raises `InvalidArgument`, listing the known ones."""
    if isinstance(id, str) and _ID.fullmatch(id):
        _load(f"ch{id[:2]}")
        if id in _registered:
            return _registered[id]
    known = ", ".join(found.id for found in tasks())
    raise InvalidArgument("task", id, f"one of {known}" if known else "the id of a task, but there are none")


def tasks(chapter: int | None = None) -> list[Task]:
    """All tasks in order, or those of one chapter. The sum of their ``points`` is what the chapter is worth."""
    for module in iter_modules(_package.__path__):
        if chapter is None or module.name == f"ch{chapter:02}":
            _load(module.name)
    found = sorted(_registered.values(), key=lambda t: (t.chapter, int(t.id[3:])))
    return [t for t in found if chapter is None or t.chapter == chapter]


@cache
def _load(name: str) -> None:
    """Register the ``TASKS`` of the module or package ``name`` in ``tasks/``, if there is one; once."""
    if find_spec(f"{_package.__name__}.{name}") is None:
        return
    new_tasks: Sequence[Task] = import_module(f"{_package.__name__}.{name}").TASKS
    for new in new_tasks:
        if new.id[:2] != name[2:]:
            raise InvalidArgument(f"id of a task in {name}.py", new.id, f"one that begins with {name[2:]}")
    for new in new_tasks:
        register(new)

"""Tasks: what is asked, and how it is judged."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbook.classroom.tasks.answer import Answer
from dpbook.core import InvalidArgument, check_int, check_type

Run = Callable[[Answer, np.random.Generator], str | None]
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
    """

    id: str
    title: str
    answer: str
    checks: Sequence[Check]
    hints: Sequence[str] = ()

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
        for hint in self.hints:
            _check_texts(hints=hint)

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


def _check_texts(**texts: Any) -> None:
    """Raise `InvalidArgument` for a value that is no string, or an empty one."""
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgument(name, text, "some text")

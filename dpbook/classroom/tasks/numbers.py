"""A course's own numbers: a task that asks for a value, asked with others than the book prints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np

from dpbook.core import check_int

T = TypeVar("T")
_course: int | None = None


def begin_course(seed: int | None) -> None:
    """From now on tasks are judged in this process by the numbers of the course ``seed``; None: by the book's."""
    global _course
    _course = None if seed is None else check_int("course", seed, 0)


def current_course() -> int | None:
    """The seed of the course by whose numbers tasks are judged, None for the book's."""
    return _course


@dataclass(frozen=True)
class Numbers(Generic[T]):
    """The numbers of one task.

    Attributes:
        task: its id, ``"05.2"``.
        published: what the book's text has.
        others: gives all that a course may draw; every one keeps the task's mistakes apart.
        phrases: gives the places of the text and code of the task in which the numbers stand, always as many.
        answer: gives the right answer.
    """

    task: str
    published: T
    others: Callable[[], Sequence[T]]
    phrases: Callable[[T], Sequence[str]]
    answer: Callable[[T], Any]

    def of(self, seed: int | None) -> T:
        """The numbers in the course ``seed``; None: the published ones."""
        if seed is None:
            return self.published
        found: T = _drawn(self, seed)
        return found

    @property
    def now(self) -> T:
        """The numbers by which the task is judged."""
        return self.of(_course)


@cache
def _drawn(numbers: Numbers[Any], seed: int) -> Any:
    others = [each for each in numbers.others() if each != numbers.published]
    chapter, number = map(int, numbers.task.split("."))
    return others[int(np.random.default_rng([seed, chapter, number]).integers(len(others)))]

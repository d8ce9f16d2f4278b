"""Expectations of a check, of numbers and other values.

Each function returns if the value meets it, and raises `Wrong` with the difference if not. ``where`` says which
instance was tried, in words: ``"world 5, size 7"``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

import numpy as np

from dpbook.classroom.tasks.answer import Wrong
from dpbook.classroom.tasks.load_tasks import PLACE
from dpbook.classroom.tasks.plain_data import difference
from dpbook.classroom.tasks.report import ParResult, describe_kind
from dpbook.collectives import Placement, Schedule, complete_everywhere, find_fault, partial
from dpbook.collectives.schedule import describe
from dpbook.core import ScheduleError, check_int

T = TypeVar("T")
_course: int | None = None


def begin_course(seed: int | None) -> None:
    """From now on tasks are judged in this process by the numbers of the course ``seed``; None: by the book's."""
    global _course
    _course = None if seed is None else check_int("course", seed, 0)


def current_course() -> int | None:
    """Return the seed of the course by whose numbers tasks are judged, None for the book's."""
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

    @cache  # noqa: B019  # a few values, made once per process
    def of(self, seed: int | None) -> T:
        """Return the numbers in the course ``seed``; None: the published ones."""
        if seed is None:
            return self.published
        others = [each for each in self.others() if each != self.published]
        chapter, number = map(int, self.task.split("."))
        return others[int(np.random.default_rng([seed, chapter, number]).integers(len(others)))]

    @property
    def now(self) -> T:
        """The numbers by which the task is judged."""
        return self.of(_course)


def numbers_of(chapter: int) -> list[Numbers[Any]]:
    """Return the numbers of the chapter's tasks that a course may change. Imports the chapter's checks."""
    judge = import_module(f"{PLACE.format(chapter)}.judge")
    return [each for each in vars(judge).values() if isinstance(each, Numbers)]


WRONG_SCHEDULE = "a schedule that does not compute the requested result"
"""The same cause for every check that gets such a schedule, whether it asks for rounds or for bytes."""


def expect(condition: bool, expected: str, got: str, where: str = "", why: str = "") -> None:
    """Raise `Wrong` unless ``condition`` holds, which the check computed from plain data."""
    if not condition:
        raise Wrong(expected, got, where, why=why)


def known_mistake(got: Any, mistakes: Mapping[str, Any], bound: Any = None) -> str:
    """Return the sentence on the mistake that gives ``got``; "" if none of ``mistakes``, results by sentence, does.

    Where several of them give it, it could be either: "".
    """
    results = ((why, one.item() if isinstance(one, np.generic) else one) for why, one in mistakes.items())
    known = [why for why, result in results if difference(result, got, bound) is None]
    return known[0] if len(known) == 1 else ""


def expect_items(got: Any, count: int, expected: str, where: str = "") -> Sequence[Any]:
    """Return ``got``, a tuple, list or vector of ``count`` items. ``expected`` says so in words."""
    if isinstance(got, np.ndarray) and got.ndim == 1:
        got = got.tolist()
    if not isinstance(got, tuple | list) or len(got) != count:
        raise _other_form(expected, got, where)
    items: Sequence[Any] = got
    return items


def expect_number(got: Any, where: str = "") -> float:
    """Return ``got``, an int or a float, as a float."""
    if not isinstance(got, int | float):
        raise _other_form("one number", got, where)
    return float(got)


def expect_equal(
    expected: Any,
    got: Any,
    where: str = "",
    axes: Sequence[str] = (),
    mistakes: Mapping[str, Any] | None = None,
) -> None:
    """Types, lengths, shapes, dtypes and every number agree exactly; see `plain_data.difference`."""
    expect_close(expected, got, None, where, axes, mistakes)


def expect_close(
    expected: Any,
    got: Any,
    bound: Any,
    where: str = "",
    axes: Sequence[str] = (),
    mistakes: Mapping[str, Any] | None = None,
) -> None:
    """Expect a value as `expect_equal` does, but numbers may differ by at most ``bound``, a number or an array.

    ``mistakes`` are the results of known mistakes, by the sentence with which a report explains them: see
    `known_mistake`.
    """
    expected = expected.item() if isinstance(expected, np.generic) else expected  # answers arrive as plain data
    found = difference(expected, got, bound, axes)
    if found is not None:
        within = "" if bound is None or np.ndim(bound) else f", give or take {bound:.3g}"
        why = known_mistake(got, mistakes or {}, bound)
        raise Wrong(found.expected + within, found.got, _join(where, found.where), why=why)


def expect_at_most(par: float, got: float, unit: str, where: str = "") -> ParResult:
    """Expect ``got`` to be at most ``par``. Return what the report says: ``"6 rounds, at par"``.

    The plural's letters stand in brackets: ``"round(s)"``, ``"byte(s) per rank"``.
    """
    reached = ParResult(got, par, unit)
    expect(got <= par, f"at most {ParResult(par, par, unit).counted}", reached.counted, where)
    return reached


def expect_schedule(got: Any, world: int, after: Placement | None = None, where: str = "") -> Schedule:
    """Return ``got``, a `Schedule` for ``world`` ranks that promises and keeps what is asked.

    ``after`` has one holding per chunk, so give it for ``got.n_chunks``; the default is that of an all-reduce. At
    the beginning each rank has its own part of every chunk. Contributions are counted, so this holds for every input.
    """
    where = where or f"world {world}"
    if not isinstance(got, Schedule):
        raise _other_form("a Schedule", got, where)
    expect(got.world == world, f"a schedule for {world} ranks", f"one for {got.world}", where)
    before = (partial(world),) * got.n_chunks
    after = (complete_everywhere(world),) * got.n_chunks if after is None else after
    for name, promised, asked in (("before", got.before, before), ("after", got.after, after)):
        if promised != asked:
            raise Wrong(f"{name}: {describe(asked, world)}", describe(promised, world), where, WRONG_SCHEDULE)
    try:
        fault = find_fault(got)
    except ScheduleError as error:
        raise Wrong("rounds that obey the rules of a schedule", str(error), where, WRONG_SCHEDULE) from None
    if fault is not None:
        place = f"chunk {fault.chunk}" if fault.round is None else f"round {fault.round + 1}, chunk {fault.chunk}"
        raise Wrong(describe(after, world), str(fault), _join(where, f"rank {fault.rank}, {place}"), WRONG_SCHEDULE)
    return got


def _other_form(expected: str, got: Any, where: str) -> Wrong:
    """Return the error for a value of another form: one cause in every check that meets it."""
    return Wrong(expected, describe_kind(got), where, cause=f"not {expected}")


def _join(*parts: str) -> str:
    return ": ".join(filter(None, parts))

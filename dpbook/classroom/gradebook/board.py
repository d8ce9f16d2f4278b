"""A board for tasks that have a par: what each answer of a class reached, best first, under pseudonyms.

A student's pseudonym is the code under which arguments in words are read (`words.code`), and stands on the student's
page. Answers of one class are tried on the same instances, so that their values can be compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from dpbook.classroom.gradebook.words import code
from dpbook.classroom.marks import Marks
from dpbook.classroom.tasks.report import ParResult, number_in_words
from dpbook.collectives import from_json
from dpbook.core import palette, render_page

PLAYERS = 3
"""Schedules of a contest that are shown, the best ones."""


@dataclass(frozen=True)
class ParResults:
    """A check with a par, and the values of all students who passed it, lowest first. All have the same par."""

    task: str
    title: str
    check: str
    entries: tuple[tuple[str, ParResult], ...]

    @property
    def par(self) -> str:
        return number_in_words(self.entries[0][1].par)

    @property
    def places(self) -> list[tuple[int, ParResult, list[str]]]:
        """Return each value, with its rank on the board and the codes of the students who reached it."""
        found, place = [], 1
        for _, group in groupby(self.entries, key=lambda entry: entry[1].value):
            entries = list(group)
            found.append((place, entries[0][1], sorted(who for who, _ in entries)))
            place += len(entries)
        return found

    @property
    def schedules(self) -> list[tuple[str, list[str]]]:
        """Return the best schedules as HTML players, each with the codes of the students who submitted it."""
        by_schedule: dict[str, list[str]] = {}
        for who, reached in self.entries:
            if reached.schedule:
                by_schedule.setdefault(reached.schedule, []).append(who)
        return [(_player(text), sorted(who)) for text, who in list(by_schedule.items())[:PLAYERS]]


def contests(marks: Marks) -> list[ParResults]:
    """Return the checks with a par that at least one student passed, in the order of the tasks."""
    found: dict[tuple[str, str, str], list[tuple[str, ParResult]]] = {}
    for name, task, title, check, reached in _reached(marks):
        found.setdefault((task, title, check), []).append((code(name, marks.seed), reached))
    return [
        ParResults(*key, tuple(sorted(entries, key=lambda entry: (entry[1].value, entry[0]))))
        for key, entries in sorted(found.items(), key=lambda item: item[0][0])
    ]


def page(marks: Marks) -> str:
    """Return the board as an HTML page."""
    return render_page("board.html", contests=contests(marks), palette=palette)


def _reached(marks: Marks) -> Iterator[tuple[str, str, str, str, ParResult]]:
    """Yield each value that was reached, with the submission, the task, its title and the check."""
    for submission in marks.submissions:
        for task in (task for exercise in submission.exercises for task in exercise.tasks):
            for case in task.report.cases if task.report else ():
                if case.reached:
                    yield submission.name, task.task, task.title, case.name, case.reached


def _player(schedule: str) -> str:
    from dpbook.figures import play

    return str(play(from_json(schedule))._repr_mimebundle_()[0]["text/html"])

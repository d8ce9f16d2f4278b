"""A board for tasks that have a par: what each answer of a class reached, best first, under pseudonyms.

A student's pseudonym is the code under which arguments in words are read (`words.code`), and stands on the student's
page. Answers of one class are tried on the same instances, so that their values can be compared.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from dpbook.classroom.gradebook.words import code
from dpbook.classroom.marks import Marks
from dpbook.classroom.tasks.report import ParResult, number_in_words
from dpbook.collectives import from_json
from dpbook.core import palette, render_page

PLAYERS = 3
"""Schedules of a contest that are shown, the best ones."""


class Contest(NamedTuple):
    """A check with a par, and what the students who passed it have reached, best first.

    ``places`` are the values, each with its rank and the codes of the students who reached it; ``schedules`` the best
    schedules as HTML players, each with the codes of the students who submitted it.
    """

    task: str
    title: str
    check: str
    par: str
    places: list[tuple[int, ParResult, list[str]]]
    schedules: list[tuple[str, list[str]]]


def contests(marks: Marks) -> list[Contest]:
    """Return the checks with a par that at least one student passed, in the order of the tasks."""
    found: dict[tuple[str, str, str], list[tuple[str, ParResult]]] = {}
    for submission in marks.submissions:
        for task in submission.tasks:
            for case in task.cases:
                if case.reached:
                    entries = found.setdefault((task.task, task.title, case.name), [])
                    entries.append((code(submission.name, marks.seed), case.reached))
    return [
        _contest(*key, sorted(entries, key=lambda entry: (entry[1].value, entry[0])))
        for key, entries in sorted(found.items(), key=lambda item: item[0][0])
    ]


def page(marks: Marks) -> str:
    """Return the board as an HTML page."""
    return render_page("board.html", contests=contests(marks), palette=palette)


def _contest(task: str, title: str, check: str, entries: Sequence[tuple[str, ParResult]]) -> Contest:
    from dpbook.figures import play

    places: list[tuple[int, ParResult, list[str]]] = []
    place = 1
    for _, group in groupby(entries, key=lambda entry: entry[1].value):
        codes, reached = zip(*group, strict=True)
        places.append((place, reached[0], list(codes)))
        place += len(codes)
    by_schedule: dict[str, list[str]] = {}
    for one, result in entries:
        if result.schedule:
            by_schedule.setdefault(result.schedule, []).append(one)
    players = []
    for schedule, who in list(by_schedule.items())[:PLAYERS]:
        film = play(from_json(schedule))._repr_mimebundle_()[0]["text/html"]
        players.append((str(film), sorted(who)))
    return Contest(task, title, check, number_in_words(entries[0][1].par), places, players)

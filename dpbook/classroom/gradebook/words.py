"""Points for arguments in words: a page with a class's answers, by question and without names, and its CSV file.

A student's code is made from the seed and the name, so that a page and the points from it need no list of codes.
"""

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, WrittenQuestion
from dpbook.core import DpbookError, palette, plural, render_page

COLUMNS = ("question", "code", "points")
Points = dict[tuple[str, str], int]
"""Points by question and code."""


class Question(NamedTuple):
    """A question with the answers to it, each with the code of its student, in the order of the codes."""

    id: str
    title: str
    text: str
    possible: int
    rubric: tuple[tuple[int, str], ...]
    answers: list[tuple[str, str]]


def code(name: str, seed: int) -> str:
    """Return the code under which the submission ``name`` is read."""
    return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "replace")).hexdigest()[:8]


def questions(marks: Marks) -> list[Question]:
    """Return the questions with at least one answer."""
    found: dict[str, Question] = {}
    for words, who in sorted(_all(marks), key=lambda pair: (pair[0].id, pair[1])):
        if words.answer:
            new = Question(words.id, words.title, words.text, words.possible, words.rubric, [])
            found.setdefault(words.id, new).answers.append((who, words.answer))
    return list(found.values())


def sheet(marks: Marks) -> str:
    """Return the HTML page on which a person gives points to the answers; its button saves the points as a CSV file."""
    return render_page("words.html", questions=questions(marks), seed=marks.seed, palette=palette, plural=plural)


def with_points(marks: Marks, given: Points) -> Marks:
    """Return the marks with these points for arguments in words; points for other submissions are ignored.

    Raises `DpbookError` for points outside 0 to the question's maximum, and if no submission has any of the codes,
    which means that the seed or the class is a different one.
    """
    possible = {(words.id, who): words.possible for words, who in _all(marks)}
    if given and possible.keys().isdisjoint(given):
        question, who = next(iter(given))
        raise DpbookError(
            f"points for words: no submission with the seed {marks.seed} has the code {who} and an exercise with "
            f"{question}, nor any other of the codes; give the --seed with which the page was written"
        )
    for key, points in given.items():
        if key in possible and not 0 <= points <= possible[key]:
            raise DpbookError(f"points for words: {key[0]} of {key[1]} has {points}, expected 0 to {possible[key]}")

    def marked(submission: SubmissionMarks, exercise: ExerciseMarks) -> ExerciseMarks:
        who = code(submission.name, marks.seed)
        return replace(exercise, words=tuple(replace(each, given=given.get((each.id, who))) for each in exercise.words))

    submissions = (
        replace(each, exercises=tuple(marked(each, exercise) for exercise in each.exercises))
        for each in marks.submissions
    )
    return replace(marks, submissions=tuple(submissions))


def absent(marks: Marks, given: Points) -> int:
    """Return how many of the points are for submissions that are not in ``marks``."""
    return len(given.keys() - {(words.id, who) for words, who in _all(marks)})


def _all(marks: Marks) -> Iterator[tuple[WrittenQuestion, str]]:
    """Yield the questions of all submissions, each with the code of its student."""
    for submission in marks.submissions:
        for exercise in submission.exercises:
            yield from ((words, code(submission.name, marks.seed)) for words in exercise.words)


def read_points(path: Path) -> Points:
    """Return the points in a CSV file that the page has saved; rows without points are ignored.

    Raises `DpbookError` for a file that cannot be read, lacks a column, or has points that are not a whole number.
    """
    try:
        rows: list[dict[str, Any]] = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise DpbookError(f"cannot read the points for words in {path}: {error}") from None
    if rows and not set(COLUMNS) <= set(rows[0]):
        raise DpbookError(f"{path} needs the columns {', '.join(COLUMNS)}")
    found: Points = {}
    for question, who, points in ([row[name] for name in COLUMNS] for row in rows):
        text = (points or "").strip()
        try:
            if text:
                found[question, who] = int(text)
        except ValueError:
            raise DpbookError(f"{path}: {text!r} is not a whole number of points ({question}, {who})") from None
    return found

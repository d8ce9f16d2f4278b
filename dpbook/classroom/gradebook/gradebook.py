"""Rosters, and marks as files for other systems: CSV for Canvas and Moodle, JSON for Gradescope."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.core import DpbookError, plural

SUBMISSION = "submission"
IDENTIFIES = (
    SUBMISSION, "student", "id", "sis user id", "sis login id", "name", "full name", "username", "id number",
    "idnumber", "email address", "email",
)  # fmt: skip
"""Columns of a roster by which a submission may be named, in small letters."""
_MAIL = ("email address", "email", "sis login id", "username")
_ALSO = {
    "Student": ("name", "full name"),
    "SIS User ID": ("id number", "idnumber"),
    "SIS Login ID": ("username",),
    "Username": ("sis login id",),
    "ID number": ("idnumber", "sis user id"),
    "Email address": ("email",),
}  # fmt: skip
"""Canvas's and Moodle's titles of a column, and what else it may be called."""
CANVAS_NAME = re.compile(r"[^_]+_(?:(?i:late)_)?([0-9]+)_[0-9]+_")
MOODLE_NAME = re.compile(r"(.+)_[0-9]+_assignsubmission_")
_NUMBERED = re.compile(r"[0-9]{2}_(.+)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters except tabs and line ends."""
_COPY = re.compile(r"(.+) ?\([0-9]+\)")

Row = dict[str, str]
"""A student's row of the roster: column title to cell."""


@dataclass(frozen=True)
class Roster:
    """A course's students, as a gradebook exports them: titles of the columns, and a row for each."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def match(self, names: Sequence[str]) -> tuple[list[Row | None], list[str]]:
        """Return the row of each submission, None where none or several match, and remarks on the names."""
        found = [self._of(name) for name in names]
        matched = [rows[0] if len(rows) == 1 else None for rows in found]
        owners: dict[int, list[str]] = {id(row): [] for row in self.rows}
        for name, row in zip(names, matched, strict=True):
            if row is not None:
                owners[id(row)].append(name)
        remarks = [*_odd(names, found), *_twice(owners.values())]
        if absent := [_called(row) for row in self.rows if not owners[id(row)]]:
            remarks.append(f"on the roster, but without a submission: {'; '.join(absent)}")
        return matched, remarks

    def _of(self, name: str) -> list[Row]:
        """Return the rows that match the first form of ``name`` that belongs to anybody."""
        keys = [(row, set(_keys(row))) for row in self.rows]
        return next((rows for form in _forms(name) if (rows := [row for row, own in keys if form in own])), [])


def read(path: Path) -> Roster:
    """Return the roster in a CSV file: an export of Canvas's gradebook, of Moodle's participants, or one of your own.

    Raises `DpbookError` where it cannot be read or no column says who somebody is.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DpbookError(f"cannot read the roster {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DpbookError(f"the roster {path} is not UTF-8 text: {error}") from None
    head = text.partition("\n")[0]
    reader = csv.DictReader(text.splitlines(keepends=True), delimiter=max(",;\t", key=head.count), restval="")
    columns = [title for title in reader.fieldnames or () if title]
    if not any(_small(title) in IDENTIFIES for title in columns):
        raise DpbookError(f"the roster {path} has no column of identifiers; expected one of {', '.join(IDENTIFIES)}")
    rows = [{title: (row[title] or "").strip() for title in columns} for row in reader]
    return Roster(tuple(columns), tuple(row for row in rows if any(row.values()) and not _is_note(row)))


def cell(row: Row, title: str) -> str:
    """Return the cell under this title, or under another system's name for it; "" if there is none."""
    by_title = {_small(each): text for each, text in row.items()}
    return next((text for each in (_small(title), *_ALSO.get(title, ())) if (text := by_title.get(each))), "")


def name(row: Row) -> str:
    """Return the student's name; empty where the roster has none."""
    last = cell(row, "Last name") or cell(row, "Surname")
    return cell(row, "Student") or f"{cell(row, 'First name')} {last}".strip()


def _is_note(row: Row) -> bool:
    """Return True for a row of Canvas's export that belongs to no student."""
    return any("points possible" in text.lower() for text in row.values()) or not any(_keys(row))


def _keys(row: Row) -> Iterator[str]:
    for title, text in row.items():
        if _small(title) in IDENTIFIES and text:
            yield _small(text)
            if _small(title) in _MAIL and "@" in text:
                yield _small(text.partition("@")[0])
    if whole := name(row):
        last, comma, first = whole.partition(",")
        yield _small(f"{first} {last}" if comma else whole)


def _forms(name: str) -> Iterator[str]:
    """Yield the name of a submission, and those from which Canvas, Moodle, an exercise's number or a copy made it."""
    name = _small(name)
    yield name
    patterns = CANVAS_NAME.match, MOODLE_NAME.match, _NUMBERED.fullmatch, _COPY.fullmatch
    yield from (found[1].strip() for pattern in patterns if (found := pattern(name)))


def _small(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def sort_key(name: str) -> tuple[str, str]:
    """Return what names are sorted by: letters without their accents, in small letters, so that Öst follows Oslo."""
    letters = unicodedata.normalize("NFKD", name)
    return "".join(each for each in letters if not unicodedata.combining(each)).casefold(), name


def _called(row: Row) -> str:
    return name(row) or next(_keys(row))


def _odd(names: Sequence[str], matches: Sequence[Sequence[Row]]) -> Iterator[str]:
    for name, rows in zip(names, matches, strict=True):
        if not rows:
            yield f"{name!r} matches no student on the roster: fill in its row by hand"
        elif len(rows) > 1:
            yield f"{name!r} may be any of {len(rows)} students on the roster: fill in its row by hand"


def _twice(owners: Iterable[Sequence[str]]) -> Iterator[str]:
    for names in owners:
        if len(names) > 1:
            yield f"{' and '.join(map(repr, names))} belong to one student: delete the rows that do not count"


_CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_MOODLE = ("First name", "Last name", "Username", "ID number", "Email address")
_POSSIBLE = "Points Possible"

Points = dict[str, int]
"""By the title of a task's column."""


def spreadsheet(marks: Marks, form: str, roster: Roster | None = None) -> tuple[bytes, list[str]]:
    """Return the file's content, in the ``form`` "plain", "canvas" or "moodle", and remarks on the names.

    Submissions stand in the order of their names. A task is empty where its exercise was not handed in or not graded,
    and so are points that a person has not given yet.
    """
    columns = _columns(marks)
    submissions, together = _together(marks.submissions, roster) if roster else (marks.submissions, [])
    names = [each.name for each in submissions]
    rows, remarks = roster.match(names) if roster else ([None] * len(names), [])
    titles = _titles(form, roster)
    lines: list[list[str | int]] = [[*titles, *columns]]
    if form != "moodle":
        whole = sum(number for title, number in columns.items() if _is_task(title))
        others = [whole if title == "Total" else "" for title in titles[1:]]
        lines.append([f"    {_POSSIBLE}", *others, *columns.values()])
    by_name = sorted(zip(submissions, rows, strict=True), key=lambda pair: sort_key(pair[0].name))
    for submission, row in by_name:
        points = _points(submission)
        who = map(_harmless, _who(form, titles, submission, row, roster is not None))
        lines.append([*who, *(points.get(title, "") for title in columns)])
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    return text.getvalue().encode("utf-8-sig" if form == "plain" else "utf-8", "replace"), [*together, *remarks]


def _together(submissions: Sequence[SubmissionMarks], roster: Roster) -> tuple[list[SubmissionMarks], list[str]]:
    """Submissions of one student that are of different exercises become one, with the first's name; and what to tell.

    In rows of their own, each would erase from a gradebook what the others give.
    """
    rows, _ = roster.match([each.name for each in submissions])
    kept: list[SubmissionMarks] = []
    joined = 0
    for number, (submission, row) in enumerate(zip(submissions, rows, strict=True)):
        same = [n for n, other in enumerate(rows) if row is not None and other is row]
        exercises = [each for n in same for each in submissions[n].exercises]
        graded = [each.chapter for each in exercises if each.chapter is not None]
        if len(same) < 2 or len(set(graded)) < len(graded):
            kept.append(submission)
        elif number == same[0]:
            kept.append(replace(submission, exercises=tuple(exercises)))
            joined += 1
    return kept, [f"{plural(joined, 'student')} with several submissions, of different exercises: one row each"][
        :joined
    ]


def _columns(marks: Marks) -> Points:
    """Return the possible points of each task that anybody has submitted, in the book's order."""
    found = {}
    for exercise in (each for submission in marks.submissions for each in submission.exercises):
        for task in exercise.tasks:
            found[f"{task.task} {task.title}"] = task.possible
        for words in exercise.words:
            found[f"{exercise.chapter:02} {words.title}"] = words.possible
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(title: str) -> tuple[str, bool, int]:
    number = title.partition(" ")[0]
    return number[:2], not _is_task(title), int(number[3:] or 0)


def _is_task(title: str) -> bool:
    """Whether a column is a task's, and not of words, which a person marks and no total contains."""
    return "." in title.partition(" ")[0]


def _points(submission: SubmissionMarks) -> Points:
    points: Points = {f"{task.task} {task.title}": task.points for each in submission.exercises for task in each.tasks}
    for exercise in submission.exercises:
        given = {f"{exercise.chapter:02} {each.title}": each.given for each in exercise.words}
        points |= {title: number for title, number in given.items() if number is not None}
    return points


def _titles(form: str, roster: Roster | None) -> list[str]:
    rows = roster.rows if roster else ()
    if form == "canvas":
        return list(_CANVAS)
    if form == "moodle":
        return [title for title in _MOODLE if any(cell(row, title) for row in rows)] or ["Username"]
    return ["Submission", *(roster.columns if roster else ()), "Total"]


def _who(
    form: str, titles: list[str], submission: SubmissionMarks, row: Row | None, listed: bool
) -> Iterator[str | int]:
    """Yield the cells before the points. A submission that matches no student keeps its own name."""
    if form == "plain":
        yield submission.name
        yield from ((row or {}).get(title, "") for title in titles[1:-1])
        yield submission.points
    elif form == "canvas":
        yield (name(row) if row else "") or submission.name
        login = {} if listed else {"SIS Login ID": submission.name}
        yield from (cell(login if row is None else row, title) for title in titles[1:])
    else:
        nobody = {titles[0]: submission.name}
        yield from (cell(nobody if row is None else row, title) for title in titles)


def _harmless(value: str | int) -> str | int:
    """Return a text that no spreadsheet takes for a formula, and Canvas not for its line of possible points."""
    if isinstance(value, int):
        return value
    value = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], value).replace(_POSSIBLE, _POSSIBLE.lower())
    return f"'{value}" if value.lstrip()[:1] in tuple("=+-@|") or value[:1] in tuple("\t\r\n") else value


def results(marks: Marks) -> dict[str, Any]:
    """Return a test for each task, visible to the learner. Raises `DpbookError` unless there is one submission."""
    if len(marks.submissions) != 1:
        raise DpbookError(f"Gradescope needs the marks of exactly one submission, got {len(marks.submissions)}")
    submission = marks.submissions[0]
    lines = [*submission.remarks, *(line for each in submission.exercises for line in _remarks(each))]
    return {
        "score": submission.points,
        "output": "\n".join(lines),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(task) for exercise in submission.exercises for task in exercise.tasks],
    }


def _remarks(exercise: ExerciseMarks) -> list[str]:
    words = [f"up to {each.possible} points, marked by a person: {each.title}" for each in exercise.words]
    return [f"{exercise.file}: {each}" for each in (*exercise.remarks, *words)]


def _test(task: TaskMarks) -> dict[str, Any]:
    report = repr(task.report) if task.report else task.reason
    return {
        "number": task.task,
        "name": task.title,
        "score": task.points,
        "max_score": task.possible,
        "status": "passed" if task.points == task.possible else "failed",
        "output": "\n".join([report, *(each for each in task.remarks if each != report)]),
        "output_format": "text",
        "visibility": "visible",
    }

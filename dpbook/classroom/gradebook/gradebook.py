"""Rosters, and marks as files for other systems: CSV for Canvas and Moodle, JSON for Gradescope."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dpbook.classroom.marks import Marks, SubmissionMarks, TaskMarks
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
        keys = [(row, set(_keys(row))) for row in self.rows]
        matched: list[Row | None] = []
        remarks = []
        owners: dict[int, list[str]] = {id(row): [] for row in self.rows}
        for name in names:
            # The rows that match the first form of the name that belongs to anybody.
            rows = next((found for form in _forms(name) if (found := [row for row, own in keys if form in own])), [])
            matched.append(rows[0] if len(rows) == 1 else None)
            if len(rows) == 1:
                owners[id(rows[0])].append(name)
            else:
                students = f"may be any of {len(rows)} students" if rows else "matches no student"
                remarks.append(f"{name!r} {students} on the roster: fill in its row by hand")
        for same in owners.values():
            if len(same) > 1:
                remarks.append(
                    f"{' and '.join(map(repr, same))} belong to one student: delete the rows that do not count"
                )
        absent = [_student(row) or next(_keys(row)) for row in self.rows if not owners[id(row)]]
        if absent:
            remarks.append(f"on the roster, but without a submission: {'; '.join(absent)}")
        return matched, remarks


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
    students = (
        row for row in rows if any(_keys(row)) and not any("points possible" in text.lower() for text in row.values())
    )  # the others are notes of Canvas's export
    return Roster(tuple(columns), tuple(students))


def _cell(row: Row, title: str) -> str:
    """Return the cell under this title, or under another system's name for it; "" if there is none."""
    by_title = {_small(each): text for each, text in row.items()}
    return next((text for each in (_small(title), *_ALSO.get(title, ())) if (text := by_title.get(each))), "")


def _student(row: Row) -> str:
    """Return the student's name; empty where the roster has none."""
    last = _cell(row, "Last name") or _cell(row, "Surname")
    return _cell(row, "Student") or f"{_cell(row, 'First name')} {last}".strip()


def _keys(row: Row) -> Iterator[str]:
    for title, text in row.items():
        if _small(title) in IDENTIFIES and text:
            yield _small(text)
            if _small(title) in _MAIL and "@" in text:
                yield _small(text.partition("@")[0])
    if whole := _student(row):
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


_CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_MOODLE = ("First name", "Last name", "Username", "ID number", "Email address")
_POSSIBLE = "Points Possible"


class _Column(NamedTuple):
    """A task, or a question in words, which a person marks and no total contains. They sort in the book's order."""

    chapter: int
    in_words: bool
    number: int
    title: str
    possible: int


def spreadsheet(marks: Marks, form: str, roster: Roster | None = None) -> tuple[bytes, list[str]]:
    """Return the file's content, in the ``form`` "plain", "canvas" or "moodle", and remarks on the names.

    Submissions stand in the order of their names. A task is empty where its exercise was not handed in or not graded,
    and so are points that a person has not given yet.
    """
    submissions, joined = _together(marks.submissions, roster) if roster else (marks.submissions, [])
    rows, remarks = roster.match([each.name for each in submissions]) if roster else ([None] * len(submissions), [])
    points = [_points(each) for each in submissions]
    columns = sorted({column for each in points for column in each})
    titles = _titles(form, roster)
    lines: list[list[str | int]] = [[*titles, *(column.title for column in columns)]]
    if form != "moodle":
        whole = sum(column.possible for column in columns if not column.in_words)
        others = [whole if title == "Total" else "" for title in titles[1:]]
        lines.append([f"    {_POSSIBLE}", *others, *(column.possible for column in columns)])
    by_name = sorted(zip(submissions, rows, points, strict=True), key=lambda each: sort_key(each[0].name))
    for submission, row, given in by_name:
        who = map(_harmless, _who(form, titles, submission, row, roster is not None))
        cells = (given.get(column) for column in columns)
        lines.append([*who, *("" if cell is None else cell for cell in cells)])
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    return text.getvalue().encode("utf-8-sig" if form == "plain" else "utf-8", "replace"), [*joined, *remarks]


def _together(submissions: Sequence[SubmissionMarks], roster: Roster) -> tuple[list[SubmissionMarks], list[str]]:
    """Submissions of one student that are of different exercises become one, with the first's name; and what to tell.

    In rows of their own, each would erase from a gradebook what the others give.
    """
    rows, _ = roster.match([each.name for each in submissions])
    groups: dict[int, list[SubmissionMarks]] = {}
    for submission, row in zip(submissions, rows, strict=True):
        groups.setdefault(id(row or submission), []).append(submission)
    kept: list[SubmissionMarks] = []
    joined = 0
    for group in groups.values():
        exercises = tuple(each for submission in group for each in submission.exercises)
        graded = [each.chapter for each in exercises if each.chapter is not None]
        if len(group) > 1 and len(set(graded)) == len(graded):
            kept.append(replace(group[0], exercises=exercises))
            joined += 1
        else:
            kept += group
    several = f"{plural(joined, 'student')} with several submissions, of different exercises: one row each"
    return kept, [several] if joined else []


def _points(submission: SubmissionMarks) -> dict[_Column, int | None]:
    """Return the points by column; None where a person has given none yet."""
    points: dict[_Column, int | None] = {}
    for exercise in submission.exercises:
        chapter = exercise.chapter or 0
        for task in exercise.tasks:
            number = int(task.task.partition(".")[2])
            points[_Column(chapter, False, number, f"{task.task} {task.title}", task.possible)] = task.points
        for number, words in enumerate(exercise.words):
            points[_Column(chapter, True, number, f"{chapter:02} {words.title}", words.possible)] = words.given
    return points


def _titles(form: str, roster: Roster | None) -> list[str]:
    rows = roster.rows if roster else ()
    if form == "canvas":
        return list(_CANVAS)
    if form == "moodle":
        return [title for title in _MOODLE if any(_cell(row, title) for row in rows)] or ["Username"]
    return ["Submission", *(roster.columns if roster else ()), "Total"]


def _who(form: str, titles: list[str], submission: SubmissionMarks, row: Row | None, listed: bool) -> list[str | int]:
    """Return the cells before the points. A submission that matches no student keeps its own name."""
    if form == "plain":
        return [submission.name, *((row or {}).get(title, "") for title in titles[1:-1]), submission.points]
    if row is None:
        row = {titles[0]: submission.name}
        if form == "canvas" and not listed:
            row["SIS Login ID"] = submission.name
    cells: list[str | int] = [_cell(row, title) for title in titles]
    if form == "canvas":
        cells[0] = _student(row) or submission.name
    return cells


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
    lines = list(submission.remarks)
    for exercise in submission.exercises:
        words = [f"up to {each.possible} points, marked by a person: {each.title}" for each in exercise.words]
        lines += [f"{exercise.file}: {each}" for each in (*exercise.remarks, *words)]
    return {
        "score": submission.points,
        "output": "\n".join(lines),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(task) for task in submission.tasks],
    }


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

"""Roster of a class: the row of each submission, found by the name of its file or folder."""

import csv
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbook.core import DpbookError

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
_CANVAS = re.compile(r"[^_]+_(?:late_)?([0-9]+)_[0-9]+_")
_MOODLE = re.compile(r"(.+)_[0-9]+_assignsubmission_")
_NUMBERED = re.compile(r"[0-9]{2}_(.+)")
_COPY = re.compile(r"(.+) ?\([0-9]+\)")

Row = dict[str, str]
"""A student: what stands in each column of the roster, by its title."""


@dataclass(frozen=True)
class Roster:
    """A course's students, as a gradebook exports them: titles of the columns, and a row for each."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def match(self, names: Sequence[str]) -> tuple[list[Row | None], list[str]]:
        """For each submission its row, None where there is no one row; and what is to be told of this."""
        found = [self._of(name) for name in names]
        matched = [rows[0] if len(rows) == 1 else None for rows in found]
        return matched, [*_odd(names, found), *_twice(names, matched), *self._absent(matched)]

    def _of(self, name: str) -> list[Row]:
        """The rows that the first form of ``name`` which is anybody's belongs to."""
        keys = [(row, set(_keys(row))) for row in self.rows]
        return next((rows for form in _forms(name) if (rows := [row for row, own in keys if form in own])), [])

    def _absent(self, matched: Sequence[Row | None]) -> Iterator[str]:
        absent = [_called(row) for row in self.rows if not any(row is each for each in matched)]
        if absent:
            yield f"on the roster, but with no submission: {'; '.join(absent)}"


def read(path: Path) -> Roster:
    """The roster in a CSV file: an export of Canvas's gradebook or of Moodle's participants, or one of your own.

    Raises `DpbookError` where it cannot be read or no column says who somebody is.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DpbookError(f"the roster {path} cannot be read as text in UTF-8: {error}") from None
    head = text.partition("\n")[0]
    reader = csv.DictReader(text.splitlines(keepends=True), delimiter=max(",;\t", key=head.count), restval="")
    columns = [title for title in reader.fieldnames or () if title]
    if not any(_small(title) in IDENTIFIES for title in columns):
        raise DpbookError(f"the roster {path} has no column that says who somebody is: one of {', '.join(IDENTIFIES)}")
    rows = [{title: (row[title] or "").strip() for title in columns} for row in reader]
    return Roster(tuple(columns), tuple(row for row in rows if any(row.values()) and not _is_note(row)))


def cell(row: Row, title: str) -> str:
    """Return the cell under this title, or under another system's name for it; "" without one."""
    by_title = {_small(each): text for each, text in row.items()}
    return next((text for each in (_small(title), *_ALSO.get(title, ())) if (text := by_title.get(each))), "")


def name(row: Row) -> str:
    """The student's name; empty where the roster has none."""
    return cell(row, "Student") or f"{cell(row, 'First name')} {cell(row, 'Last name')}".strip()


def _is_note(row: Row) -> bool:
    """A line of Canvas's export that is of no student."""
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
    """The name of a submission, and what Canvas, Moodle, a number of the exercise or of a copy have made it from."""
    name = _small(name)
    yield name
    patterns = _CANVAS.match, _MOODLE.match, _NUMBERED.fullmatch, _COPY.fullmatch
    yield from (found[1].strip() for pattern in patterns if (found := pattern(name)))


def _small(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _called(row: Row) -> str:
    return name(row) or next(_keys(row))


def _odd(names: Sequence[str], matches: Sequence[Sequence[Row]]) -> Iterator[str]:
    for name, rows in zip(names, matches, strict=True):
        if not rows:
            yield f"{name!r} is nobody on the roster: its row names nobody, complete it by hand"
        elif len(rows) > 1:
            yield f"{name!r} may be any of {len(rows)} on the roster: its row names nobody, complete it by hand"


def _twice(names: Sequence[str], matched: Sequence[Row | None]) -> Iterator[str]:
    for number, row in enumerate(matched):
        same = [name for name, other in zip(names, matched, strict=True) if row is not None and other is row]
        if len(same) > 1 and names[number] == same[0] and number == matched.index(row):
            yield f"{' and '.join(map(repr, same))} are of one student: each has a row, delete those that do not count"

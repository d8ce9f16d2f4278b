"""A notebook that anybody may have written: its cells, read with care, and its answers in words."""

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpbook.core import DpbookError, checkout

MAX_BYTES = 20 * 2**20
MAX_CODE = 500_000
"""Characters of code in a notebook: ten times what the longest exercise has with its solutions."""
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz")


class Unreadable(DpbookError):
    """A file is no notebook that could be graded; the message says why, for who wrote it."""


@dataclass(frozen=True)
class Cell:
    """A cell: its id, nbgrader's metadata, and its text."""

    id: str
    grade_id: str
    points: Any
    tags: tuple[str, ...]
    source: str


def is_archive(path: Path) -> bool:
    """Whether its name is that of a file in which others are packed."""
    return path.suffix.lower() in ARCHIVES


def code_cells(path: Path) -> list[Cell]:
    """The cells of code of a notebook, in order. Raises `Unreadable`."""
    found = [_cell(each) for each in _cells(path) if each.get("cell_type") == "code"]
    size = sum(len(cell.source) for cell in found)
    if size > MAX_CODE:
        raise Unreadable(
            f"has {size:,} characters of code, and a notebook may have {MAX_CODE:,}: remove what is not yours"
        )
    return found


def text_cells(path: Path) -> list[Cell]:
    """The cells of text of a notebook, in order. Raises `Unreadable`."""
    return [_cell(each) for each in _cells(path) if each.get("cell_type") == "markdown"]


def _cells(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(_bytes(path))
    except (ValueError, RecursionError):
        why = "unpack it" if is_archive(path) else "its text is no JSON"
        raise Unreadable(f"is no notebook: {why}") from None
    if not isinstance(found, dict) or not isinstance(found.get("cells"), list):
        old = isinstance(found, dict) and "worksheets" in found
        why = "is a notebook of an old format: open it in JupyterLab and save it" if old else "is no notebook"
        raise Unreadable(why)
    return [each for each in found["cells"] if isinstance(each, dict)]


def _bytes(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        link = path.is_symlink()
        raise Unreadable(
            "is a link, and links are not followed" if link else f"cannot be read: {error.strerror}"
        ) from None
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise Unreadable("is no file")
        if about.st_size > MAX_BYTES:
            size = f"has {about.st_size / 2**20:,.0f} MB, and a notebook may have {MAX_BYTES / 2**20:.0f}"
            raise Unreadable(f"{size}: clear its outputs and save it")
        return file.read(MAX_BYTES + 1)


def _cell(cell: dict[str, Any]) -> Cell:
    meta = _dict(cell.get("metadata"))
    marks = _dict(meta.get("nbgrader"))
    source, tags = cell.get("source"), meta.get("tags")
    lines = source if isinstance(source, list) else [source]
    return Cell(
        _text(cell.get("id")),
        _text(marks.get("grade_id")),
        marks.get("points"),
        tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        "".join(line for line in lines if isinstance(line, str)),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value[:100] if isinstance(value, str) else ""


UNANSWERED = "YOUR ANSWER HERE"
LONGEST = 20_000
"""Characters that are shown of an answer; the questions ask for 150 words."""
_RUBRIC = "*Marks.*"
_EARNS = re.compile(r"(?:^|\. )([0-9]+): ")

Rubric = tuple[tuple[int, str], ...]
"""Points, and what earns them."""


@dataclass(frozen=True)
class InWords:
    """A question for an argument in words, whose ``possible`` points a person gives, as its ``rubric`` says.

    ``answer`` is empty where there is none.
    """

    id: str
    title: str
    possible: int
    answer: str
    rubric: Rubric


def in_words(chapter: int, cells: list[Cell]) -> tuple[InWords, ...]:
    """The chapter's questions in words, with what the ``cells`` of a handed in notebook answer."""
    written = {cell.grade_id: cell.source for cell in cells}
    return tuple(
        InWords(id, title, points, _answer(written.get(id, "")), rubric)
        for id, title, points, rubric in _asked(chapter)
    )


def _answer(text: str) -> str:
    text = text.strip()
    return "" if text == UNANSWERED else text if len(text) <= LONGEST else f"{text[:LONGEST]}… (cut)"


@cache
def _asked(chapter: int) -> tuple[tuple[str, str, int, Rubric], ...]:
    """Id, title, points and rubric of each question; none where there is no exercise."""
    folder = checkout.root() / "exercises" / "solutions"
    path = next(iter(sorted(folder.glob(f"{chapter:02}_*.ipynb"))), None)
    return tuple(_questions(path)) if path else ()


def _questions(path: Path) -> Iterator[tuple[str, str, int, Rubric]]:
    title = ""
    for cell in text_cells(path):
        if cell.grade_id.startswith("words-"):
            yield cell.grade_id, title, int(cell.points), _rubric(cell.source)
        elif cell.source.startswith("## "):
            title = cell.source.partition("\n")[0].removeprefix("## ").partition(" (")[0]


def _rubric(text: str) -> Rubric:
    """From the end of a model answer: ``*Marks.* 1: this. 2: that.``"""
    parts = _EARNS.split(text.partition(_RUBRIC)[2].strip())[1:]
    return tuple((int(points), earns.rstrip(".")) for points, earns in zip(parts[::2], parts[1::2], strict=True))

"""Reading a notebook that anybody may have written: no link, not too large, and of the form that notebooks have."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.core import DpbookError

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

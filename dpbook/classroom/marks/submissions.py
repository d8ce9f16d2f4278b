"""Submissions: a notebook, a folder of them, or a class, which is a folder of either."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dpbook.classroom.marks.submitted_notebook import exercise_of, is_archive
from dpbook.core import DpbookError

MAX_DEPTH = 8
MAX_FILES = 200
"""Notebooks in one submission; more are a mistake, or an attack."""

_UPDATE = re.compile(r"(?P<stem>.+)\.new\d*(?P<suffix>\.ipynb)", re.IGNORECASE)
"""Names that ``make lab`` gives to new versions of notebooks that a reader has changed."""


class Submission(NamedTuple):
    """A submission: a name, its notebooks, and remarks on other files."""

    name: str
    notebooks: tuple[Path, ...]
    remarks: tuple[str, ...] = ()


def find(paths: Iterable[Path], *, whole: bool = False) -> list[Submission]:
    """Return the submissions at these paths, each once. Raises `DpbookError` for a path that does not exist.

    A notebook is one. A folder is one as well, unless it has folders with notebooks, or several notebooks of the same
    exercise: then it is a class, and each of these is one. An update that the book has laid beside a notebook belongs
    to the submission of that notebook. With ``whole`` every folder is one.
    """
    found: list[Submission] = []
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise DpbookError(f"{path}: no such file or folder")
        if not path.is_dir() or path.is_symlink():
            found.append(Submission(path.stem, (path,)))
        else:
            found += [_of_folder(path)] if whole else _class(path)
    once = {(each.name, *map(os.path.abspath, each.notebooks)): each for each in found}
    return list(once.values())


def _class(folder: Path) -> Iterator[Submission]:
    inside = sorted(each for each in folder.iterdir() if not _is_hidden(each))
    folders = [each for each in inside if _is_folder(each)]
    files = [each for each in inside if each not in folders]
    names = {each.name for each in files}
    updates = [each for each in files if updated_name(each.name) in names]
    files = [each for each in files if each not in updates]
    exercises = [found for each in files if _is_notebook(each) and (found := exercise_of(each)) is not None]
    if any(_holds_notebooks(each) for each in folders) or len(set(exercises)) < len(exercises):
        yield from (_of_folder(each) for each in folders)
        for file in files:
            own = (each for each in updates if updated_name(each.name) == file.name)
            yield Submission(file.stem, (file, *own))
    else:
        yield _of_folder(folder)


def _of_folder(folder: Path) -> Submission:
    name = folder.resolve().name
    try:
        everything = sorted(_files(folder))
    except OSError as error:
        return Submission(name, (), (f"cannot read its folder: {error.strerror}",))
    notebooks = [each for each in everything if _is_notebook(each)]
    others = [each.relative_to(folder) for each in everything if not _is_notebook(each)]
    remarks = [f"{each} is not a notebook and was ignored{': unpack it' * is_archive(each)}" for each in others]
    if not notebooks:
        remarks.append("it contains no notebook")
    if len(notebooks) > MAX_FILES:
        remarks.append(f"only the first {MAX_FILES} of {len(notebooks):,} notebooks were graded")
    return Submission(name, tuple(notebooks[:MAX_FILES]), tuple(remarks[:MAX_FILES]))


def updated_name(name: str) -> str | None:
    """Return the name of the notebook beside which the book has laid the update ``name``; None if it is no update."""
    found = _UPDATE.fullmatch(name)
    return found and f"{found['stem']}{found['suffix']}"


def _holds_notebooks(folder: Path) -> bool:
    try:
        return any(map(_is_notebook, _files(folder)))
    except OSError:
        return True  # somebody's, it seems


def _files(folder: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """Files below a folder. Links to folders and hidden folders are skipped."""
    for each in folder.iterdir():
        if depth and _is_folder(each):
            yield from _files(each, depth - 1)
        elif not _is_hidden(each):
            yield each


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not _is_hidden(path)


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name == "__MACOSX"  # which macOS puts into its archives


def _is_notebook(path: Path) -> bool:
    return path.suffix.lower() == ".ipynb"

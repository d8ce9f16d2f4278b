"""What was handed in: a notebook, a folder of them, or a class, which is a folder of either."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpbook.core import DpbookError

MAX_FILES = 200
"""Notebooks in one submission; more are a mistake, or an attack."""


@dataclass(frozen=True)
class Handed:
    """A submission: a name, its notebooks, and what is to be said of other files."""

    name: str
    notebooks: tuple[Path, ...]
    remarks: tuple[str, ...] = ()


def find(paths: Iterable[Path]) -> list[Handed]:
    """The submissions at these paths. Raises `DpbookError` for a path that is not there.

    A notebook is one. A folder is one as well, unless it has folders with notebooks, or several notebooks of the same
    exercise: then it is a class, and each of these is one.
    """
    found = []
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise DpbookError(f"{path}: there is no such file or folder")
        found += list(_class(path)) if path.is_dir() and not path.is_symlink() else [_single(path)]
    return found


def _class(folder: Path) -> Iterator[Handed]:
    folders = [each for each in sorted(folder.iterdir()) if _is_folder(each) and any(_notebooks(each))]
    files = [each for each in sorted(folder.iterdir()) if not each.is_dir() and not each.name.startswith(".")]
    exercises = [each.name[:3] for each in files]
    if folders or len(set(exercises)) < len(exercises):
        yield from (_of_folder(each) for each in folders)
        yield from (_single(each) for each in files)
    else:
        yield _of_folder(folder)


def _of_folder(folder: Path) -> Handed:
    everything = sorted(_files(folder))
    notebooks = [each for each in everything if each.suffix == ".ipynb"]
    remarks = [
        f"{each.relative_to(folder)} is no notebook, and was left out" for each in everything if each not in notebooks
    ]
    if len(notebooks) > MAX_FILES:
        remarks.append(f"there are {len(notebooks):,} notebooks, of which {MAX_FILES} were graded")
    return Handed(folder.resolve().name, tuple(notebooks[:MAX_FILES]), tuple(remarks[:MAX_FILES]))


def _single(path: Path) -> Handed:
    return Handed(path.stem, (path,))


def _notebooks(folder: Path) -> Iterator[Path]:
    return (each for each in _files(folder) if each.suffix == ".ipynb")


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder; links to folders are not followed, hidden ones not looked into."""
    for each in folder.iterdir():
        if each.name.startswith("."):
            continue
        if _is_folder(each):
            yield from _files(each)
        else:
            yield each


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not path.name.startswith(".")

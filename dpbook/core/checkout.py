"""The place of the book's notebooks, and the list of its chapters, which is read from them.

Chapters, exercises and the training scripts that readers copy lie in the repository, beside the package. A wheel holds
them in ``dpbook/published``, without the solutions.

The metadata of a notebook describe its chapter:

    "dpbook": {"title": "All-reduce", "minutes": 75}

``minutes`` is the reading time. A notebook ``12b_name.ipynb`` is an optional chapter beside chapter 12. In a reader's
copy, ``version`` is the version of the book that it is from.
"""

import importlib.util
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dpbook.core.errors import DpbookError, check_int
from dpbook.core.files import PACKAGE

_LABEL = re.compile(r"\d\d[b-z]?_")


@dataclass(frozen=True)
class Chapter:
    """One chapter: its label ("05" or "12b"), its title, and the minutes that a reader needs."""

    label: str
    title: str
    minutes: int
    path: Path

    @property
    def number(self) -> int:
        """Number of the chapter; an optional chapter has the number of the chapter beside it."""
        return int(self.label[:2])

    @property
    def is_optional(self) -> bool:
        """Whether the chapter stands beside another one and may be left out; it has no exercise."""
        return len(self.label) > 2


def is_checkout() -> bool:
    """Whether the package lies in the repository; otherwise it was installed from a wheel."""
    return (PACKAGE.resolve().parent / "pyproject.toml").is_file()


def root() -> Path:
    """Return the checkout that contains the package. Raises `DpbookError` if there is none."""
    if not is_checkout():
        there = f"clone {repository()} and run the command there"
        raise DpbookError(f"solutions, tests and tools are not part of the installed package: {there}")
    return PACKAGE.resolve().parent


def book() -> Path:
    """Return the folder with ``chapters`` and ``exercises``: the checkout, or a folder of the installed package."""
    published = PACKAGE / "published"
    return published if published.is_dir() else root()


def solutions() -> Path:
    """Return the folder of the instructor's notebooks. Raises `DpbookError` outside a checkout."""
    return root() / "exercises" / "solutions"


def workbook() -> Path:
    """Return the place of the reader's copy: ``workbook`` in the checkout or, without one, in the current folder."""
    if is_checkout():
        return root() / "workbook"
    here = Path.cwd()
    return here if here.name == "workbook" else here / "workbook"


def repository() -> str:
    """Return "the repository", followed by its address where the metadata of an installed package have it."""
    from importlib.metadata import PackageNotFoundError, metadata

    urls: dict[str, str] = {}
    with suppress(PackageNotFoundError):
        urls = dict(url.split(", ", 1) for url in metadata("dpbook").get_all("Project-URL", []))
    return " ".join(["the repository", *(f"({url})" for name, url in urls.items() if name == "Repository")])


def script(name: str) -> ModuleType:
    """Return a training script of the book's ``scripts``, which readers copy, as a module. Raises `DpbookError`."""
    path = book() / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise DpbookError(f"there is no script {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chapters(directory: Path | None = None) -> list[Chapter]:
    """The chapters in ``directory`` (default: those of the book), in the order of their labels: 12, 12b, 13.

    Raises `DpbookError` for a notebook that cannot be read or has no title and minutes.
    """
    folder = book() / "chapters" if directory is None else directory
    return [_read(path) for path in sorted(folder.glob("*.ipynb")) if _LABEL.match(path.name)]


def _read(path: Path) -> Chapter:
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["metadata"]["dpbook"]
        title, minutes = about["title"], about["minutes"]
    except (ValueError, KeyError, TypeError) as error:
        raise DpbookError(
            f'{path.name}: the notebook\'s metadata must hold "dpbook": {{"title", "minutes"}} ({error!r})'
        ) from error
    check_int(f"{path.name}: minutes", minutes, 1)
    return Chapter(path.name.partition("_")[0], str(title), minutes, path)

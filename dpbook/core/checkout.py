"""The book as a list of chapters, read from the stored notebooks.

The metadata of a notebook describe its chapter:

    "dpbook": {"title": "All-reduce", "hardware": "cpu", "minutes": 60}

``hardware`` is ``"cpu"`` or ``"gpu"``; ``minutes`` is the reading time. The progress map, the doctor and the README
read them. A notebook ``12b_name.ipynb`` is an optional chapter beside chapter 12.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.core.errors import DpbookError, check_int, check_one_of
from dpbook.core.files import PACKAGE

HARDWARE = ("cpu", "gpu")
_LABEL = re.compile(r"\d\d[b-z]?_")


@dataclass(frozen=True)
class Chapter:
    """One chapter: its label ("05" or "12b"), its title, what it runs on, and the minutes that a reader needs."""

    label: str
    title: str
    hardware: str
    minutes: int
    path: Path

    @property
    def number(self) -> int:
        """The number of the chapter; an optional one has that of the chapter beside it."""
        return int(self.label[:2])

    @property
    def is_optional(self) -> bool:
        """Whether the chapter stands beside another one and may be left out; it has no exercise."""
        return len(self.label) > 2

    def __str__(self) -> str:
        return f"{self.label:3} {self.title}  ({self.hardware}, {self.minutes} min)"


def root() -> Path:
    """Return the checkout that contains the chapters. Raises `DpbookError` if the package is installed without them."""
    here = PACKAGE.resolve().parent
    if not (here / "pyproject.toml").is_file():
        raise DpbookError(f"{here} is no checkout of dpbook: clone the repository to have the chapters and exercises")
    return here


def chapters(directory: Path | None = None) -> list[Chapter]:
    """The chapters in ``directory`` (default: the checkout's ``chapters/``), in the order of their labels: 12, 12b, 13.

    Raises `DpbookError` for a notebook that cannot be read or does not say what it needs.
    """
    folder = root() / "chapters" if directory is None else directory
    return [_read(path) for path in sorted(folder.glob("*.ipynb")) if _LABEL.match(path.name)]


def _read(path: Path) -> Chapter:
    try:
        needs: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["metadata"]["dpbook"]
        title, hardware, minutes = needs["title"], needs["hardware"], needs["minutes"]
    except (ValueError, KeyError, TypeError) as error:
        raise DpbookError(
            f'{path.name}: the notebook\'s metadata must hold "dpbook": {{"title", "hardware", "minutes"}} ({error!r})'
        ) from error
    check_one_of(f"{path.name}: hardware", hardware, HARDWARE)
    check_int(f"{path.name}: minutes", minutes, 1)
    return Chapter(path.name.partition("_")[0], str(title), hardware, minutes, path)

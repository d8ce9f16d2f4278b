"""The tasks that are answered in words: what a learner wrote, and what earns a person's points."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpbook.classroom.marks.files import Cell, text_cells
from dpbook.core import checkout

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

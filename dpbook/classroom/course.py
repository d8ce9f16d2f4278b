"""Exercises and solutions with the numbers of one course: the book's notebooks with some phrases replaced."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpbook.classroom.tasks.expectations import Numbers, numbers_of
from dpbook.classroom.tasks.load_tasks import list_tasks, task
from dpbook.classroom.tasks.notebook_cells import Cell, Notebook, dumps, learners, mark, read, source
from dpbook.core import DpbookError, checkout, write_atomically

HEADING = re.compile(r"## (\d\d\.\d+) ")
BEGIN = re.compile(r"(exercise\(\d+, globals\(\))\)")
ANSWER = re.compile(
    r"(?P<stub>### BEGIN SOLUTION\n(?:### STUB: [^\n]*\n)*).*?(?=^### END SOLUTION)", re.DOTALL | re.MULTILINE
)


def varying() -> list[Numbers[Any]]:
    """Return the tasks whose numbers vary with the course seed, in order. Imports all checks of the book."""
    chapters = {each.number for each in checkout.chapters() if list_tasks(each.number)}
    return sorted((found for chapter in chapters for found in numbers_of(chapter)), key=lambda each: each.task)


def write_course(seed: int, folder: Path, for_teachers: Path) -> list[Path]:
    """Write the exercises of the course ``seed`` into ``folder``, and their solutions into ``for_teachers``.

    Raises `DpbookError` if one of these folders contains the other: handing out one would hand out both.
    """
    places = folder.resolve(), for_teachers.resolve()
    if places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]):
        raise DpbookError(f"{for_teachers} and {folder} must not contain each other: choose another one")
    made = []
    for name, solution in solutions(seed):
        for place, notebook in ((for_teachers, solution), (folder, learners(solution, name))):
            place.mkdir(parents=True, exist_ok=True)
            write_atomically(place / name, dumps(notebook))
            made.append(place / name)
    return made


def solutions(seed: int) -> Iterator[tuple[str, Notebook]]:
    """Yield each exercise of the course ``seed``: its name, and the instructor's notebook."""
    numbers = {each.task: each for each in varying()}
    for path in sorted(checkout.solutions().glob("[0-9][0-9]_*.ipynb")):
        yield path.name, of_course(read(path), seed, numbers)


def of_course(solution: Notebook, seed: int, numbers: dict[str, Numbers[Any]]) -> Notebook:
    """Return an instructor's notebook with the course's numbers. Raises `DpbookError` where a phrase is not found."""
    cells, current, missing, stale = [], "", dict[str, set[str]](), False
    for cell in solution["cells"]:
        if cell["cell_type"] == "markdown" and (found := HEADING.match(source(cell))):
            current, stale = found[1], False
            if current in numbers:
                missing[current] = {*numbers[current].phrases(numbers[current].published)}
        text = BEGIN.sub(rf"\1, course={seed})", source(cell)) if cell["cell_type"] == "code" else source(cell)
        if current in numbers:
            text = _in_words(text, numbers[current], seed, missing[current])
            if mark(cell).get("grade_id") == task(current).answer_cell:
                right = numbers[current].answer(numbers[current].of(seed))
                answer = f"{task(current).answer} = {right!r}\n"
                text = ANSWER.sub(r"\g<stub>" + answer.replace("\\", r"\\"), text)
            stale |= cell["cell_type"] == "code" and text != source(cell)
        cells.append(_with(cell, text, stale))
    for name, phrases in missing.items():
        for phrase in phrases:
            raise DpbookError(f"task {name}: its text does not contain {phrase!r}, which the course replaces")
    return {**solution, "cells": cells}


def _in_words(text: str, numbers: Numbers[Any], seed: int, missing: set[str]) -> str:
    pairs = dict(zip(numbers.phrases(numbers.published), numbers.phrases(numbers.of(seed)), strict=True))
    longest_first = sorted(pairs, key=len, reverse=True)

    def replaced(match: re.Match[str]) -> str:
        missing.discard(match[0])
        return pairs[match[0]]

    return re.sub("|".join(map(re.escape, longest_first)), replaced, text)


def _with(cell: Cell, text: str, stale: bool) -> Cell:
    """Return the cell with another text; outputs of a changed cell, and of those after it (``stale``), are dropped."""
    if text == source(cell) and not (stale and cell.get("outputs")):
        return cell
    changed = {**cell, "source": text.splitlines(keepends=True)}
    return changed if cell["cell_type"] != "code" else {**changed, "outputs": [], "execution_count": None}

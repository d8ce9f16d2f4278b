"""The learner's exercises, made from the instructor's: ``python -m dpbook.grading.notebooks``.

``exercises/solutions/NN_name.ipynb`` is the source, ``exercises/NN_name.ipynb`` what a learner gets. Marks and metadata
are nbgrader's (schema 3), so that its ``generate_assignment`` and ``autograde`` work on the same files:

- In an answer cell (``solution``), the lines between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` become
  ``# YOUR CODE HERE`` and ``raise NotImplementedError``. Lines ``### STUB: text`` right after BEGIN replace these two:
  ``### STUB: prediction = ...  # your number``. (nbgrader drops them with the region and puts its own stub; with the
  configuration that ``dpbook nbgrader`` writes it does as we do.)
- In a check cell (``grade``, ``locked``), the lines between ``### BEGIN HIDDEN TESTS`` and ``### END HIDDEN TESTS`` go.
- A markdown cell that is both ``solution`` and ``grade`` is an argument in words, which a person marks: the model
  answer becomes ``YOUR ANSWER HERE``.
- Outputs go, but for those of cells tagged ``keep-output``: pictures of the unsolved state. Cell ids stay.
"""

import json
import linecache
import sys
from pathlib import Path
from typing import Any

from dpbook.core import DpbookError, checkout, write_atomically
from dpbook.grading.cell_text import KEEP_OUTPUT, SETUP
from dpbook.grading.declared import tasks
from dpbook.grading.regions import Cell, Notebook, mark, marked_regions, source, tags, title, without_regions

IN_WORDS = "YOUR ANSWER HERE"


def read(path: Path) -> Notebook:
    """A notebook as JSON. Raises `DpbookError` if it is none."""
    try:
        nb = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(nb["cells"], list) and nb["nbformat"] == 4:
            return dict(nb)
    except (ValueError, KeyError, TypeError):
        pass
    raise DpbookError(f"{path} is no notebook of format 4")


def answer_cells(nb: Notebook) -> dict[str, str]:
    """Grade id and source of the cells that hold answers, in order."""
    return {mark(cell)["grade_id"]: source(cell) for cell in nb["cells"] if _is_answer(cell)}


def _is_answer(cell: Cell) -> bool:
    return cell["cell_type"] == "code" and bool(mark(cell).get("solution"))


def answers(nb: Notebook) -> dict[str, Any]:
    """By task, the value of each answer in a notebook: its cells tagged ``setup`` and its answer cells are run.

    Gives the references of an instructor's notebook and the stubs of a learner's. Raises what the cells raise.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in nb["cells"]:
        if cell["cell_type"] == "code" and (SETUP in tags(cell) or _is_answer(cell)):
            name, text = f"<cell {mark(cell).get('grade_id', SETUP)}>", source(cell)
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # so that errors show it
            exec(compile(text, name, "exec"), namespace)
    present = answer_cells(nb)
    return {task.id: namespace[task.answer] for task in tasks() if task.answer_cell in present}


def learners(nb: Notebook, name: str) -> Notebook:
    """The learner's version of an instructor's notebook; ``name`` is used in errors.

    Raises `DpbookError`, naming notebook and cell, for marks that do not pair up or are where they may not be.
    """
    return {**nb, "cells": [_learners_cell(cell, f"{name}, {title(cell, n)}") for n, cell in enumerate(nb["cells"])]}


def _learners_cell(cell: Cell, place: str) -> Cell:
    if cell["cell_type"] != "code":
        if list(marked_regions(source(cell), place)):
            raise DpbookError(f"{place}: marks of solutions and hidden tests belong into code cells")
        return {**cell, "source": [IN_WORDS]} if mark(cell).get("solution") else cell
    return {
        **cell,
        "source": without_regions(cell, place).splitlines(keepends=True),
        "execution_count": None,
        "metadata": {key: entry for key, entry in cell["metadata"].items() if key != "execution"},
        "outputs": [
            {**output, "execution_count": None} if "execution_count" in output else output
            for output in (cell["outputs"] if KEEP_OUTPUT in tags(cell) else [])
        ],
    }


def dumps(nb: Notebook) -> bytes:
    """A notebook as nbformat and JupyterLab write it, the same for the same content."""
    return (json.dumps(nb, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def generated(root: Path) -> dict[Path, bytes]:
    """What each learner's notebook below ``root/exercises`` should hold. Raises `DpbookError` as `learners` does."""
    exercises = root / "exercises"
    found = sorted((exercises / "solutions").glob("[0-9][0-9]_*.ipynb"))
    return {exercises / path.name: dumps(learners(read(path), path.name)) for path in found}


def stale(root: Path | None = None) -> list[Path]:
    """The learner's notebooks that are not what would be generated now, or have no source (default: of this book)."""
    root = root or checkout.root()
    expected = generated(root)
    there = set((root / "exercises").glob("*.ipynb"))
    wrong = {path for path, content in expected.items() if path not in there or path.read_bytes() != content}
    return sorted(wrong | (there - expected.keys()))


def main() -> int:
    """Write all learner's notebooks that are stale; on any fault write none. Returns the exit status."""
    from dpbook.grading.structure import faults

    try:
        root = checkout.root()
        problems = [
            line for path in sorted((root / "exercises" / "solutions").glob("*.ipynb")) for line in faults(path)
        ]
        if problems:
            raise DpbookError("\n".join(problems))
        expected = generated(root)
    except DpbookError as error:
        print(error, file=sys.stderr)
        return 1
    for path in stale(root):
        if path in expected:
            write_atomically(path, expected[path])
            print(f"written: {path.relative_to(root)}")
        else:
            print(f"without a source, left alone: {path.relative_to(root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

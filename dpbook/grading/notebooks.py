"""The learner's exercises, made from the instructor's: ``python -m dpbook.grading.notebooks``.

``exercises/solutions/NN_name.ipynb`` is the source, ``exercises/NN_name.ipynb`` what a learner gets. Marks and metadata
are nbgrader's (schema 3), so that its ``generate_assignment`` and ``autograde`` work on the same files:

- In an answer cell (``solution``), the lines between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` become
  ``# YOUR CODE HERE`` and ``raise NotImplementedError``. Lines ``### STUB: text`` right after BEGIN replace these two:
  ``### STUB: prediction = ...  # your number``. (nbgrader drops them with the region and puts its own stub.)
- In a check cell (``grade``, ``locked``), the lines between ``### BEGIN HIDDEN TESTS`` and ``### END HIDDEN TESTS`` go.
- A markdown cell that is both ``solution`` and ``grade`` is an argument in words, which a person marks: the model
  answer becomes ``YOUR ANSWER HERE``.
- Outputs go, but for those of cells tagged ``keep-output``: pictures of the unsolved state. Cell ids stay.
"""

import json
import linecache
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from dpbook.core import DpbookError, checkout, write_atomically
from dpbook.grading.cell_text import KEEP_OUTPUT, SETUP
from dpbook.grading.declared import tasks

Notebook = dict[str, Any]
Cell = dict[str, Any]

STUB = ("# YOUR CODE HERE", "raise NotImplementedError")
IN_WORDS = "YOUR ANSWER HERE"
SOLUTION, HIDDEN = "SOLUTION", "HIDDEN TESTS"
_STUB_MARK = "### STUB: "


def read(path: Path) -> Notebook:
    """A notebook as JSON. Raises `DpbookError` if it is none."""
    try:
        nb = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(nb["cells"], list) and nb["nbformat"] == 4:
            return dict(nb)
    except (ValueError, KeyError, TypeError):
        pass
    raise DpbookError(f"{path} is no notebook of format 4")


def source(cell: Cell) -> str:
    """The text of a cell; the format allows a string or a list of lines."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def mark(cell: Cell) -> dict[str, Any]:
    """A cell's nbgrader metadata, empty if it has none."""
    return dict(cell["metadata"].get("nbgrader", {}))


def tags(cell: Cell) -> list[str]:
    """A cell's tags."""
    return list(cell["metadata"].get("tags", []))


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
        if list(_regions(source(cell), place)):
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


def without_regions(cell: Cell, place: str) -> str:
    """The source of a code cell as the learner gets it. Raises `DpbookError`, beginning with ``place``."""
    lines = source(cell).split("\n")
    kept: list[str] = []
    end = 0
    for kind, first, last in _regions(source(cell), place):
        may = mark(cell).get("solution" if kind == SOLUTION else "grade")
        if not may:
            raise DpbookError(f"{place}: BEGIN {kind} in a cell whose metadata does not allow it")
        kept += lines[end:first]
        if kind == SOLUTION:
            indent = lines[first][: -len(lines[first].lstrip())]
            kept += [indent + line for line in _stub(lines[first + 1 : last])]
        end = last + 1
    return "\n".join(kept + lines[end:]).rstrip("\n") if end else source(cell)


def _stub(region: Sequence[str]) -> Sequence[str]:
    own = takewhile(lambda line: line.lstrip().startswith(_STUB_MARK), region)
    return [line.lstrip().removeprefix(_STUB_MARK).rstrip() for line in own] or STUB


def _regions(text: str, place: str) -> Iterator[tuple[str, int, int]]:
    """Kind, first and last line of each marked region. Raises `DpbookError` for marks that do not pair up."""
    opened: tuple[str, int] | None = None
    for number, line in enumerate(text.split("\n")):
        for kind in (SOLUTION, HIDDEN):
            for word in ("BEGIN", "END"):
                if f"{word} {kind}" not in line:
                    continue
                if line.strip() != f"### {word} {kind}":
                    raise DpbookError(f"{place}, line {number + 1}: a mark stands alone, as ### {word} {kind}")
                if word == "BEGIN":
                    if opened:
                        raise DpbookError(f"{place}, line {number + 1}: BEGIN {kind} inside BEGIN {opened[0]}")
                    opened = kind, number
                elif opened is None or opened[0] != kind:
                    raise DpbookError(f"{place}, line {number + 1}: END {kind} without its BEGIN")
                else:
                    yield kind, opened[1], number
                    opened = None
    if opened:
        raise DpbookError(f"{place}, line {opened[1] + 1}: BEGIN {opened[0]} without its END")


def title(cell: Cell, number: int) -> str:
    """A cell's grade id, id or number, to name it in a message."""
    return f"cell {mark(cell).get('grade_id') or cell.get('id') or number}"


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

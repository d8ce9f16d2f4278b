"""Cells of an exercise: nbgrader's marks in their metadata, the names that their code defines and uses, and the parts
that a learner does not get. `tools/exercise_notebooks.py` says how those are marked.
"""

import ast
import json
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from dpbook.core import DpbookError

KEEP_OUTPUT, SETUP = "keep-output", "setup"
"""Tags of cells whose output a learner gets, and of those that come before all others."""


def as_python(text: str) -> str:
    """Return the source of a cell as Python: lines for the shell or IPython become comments."""
    return "\n".join(f"#{line}" if line.startswith(("%", "!")) else line for line in text.split("\n"))


def parse_cell(text: str) -> ast.Module:
    """Return a cell as Python."""
    return ast.parse(as_python(text))


def defined(tree: ast.Module) -> set[str]:
    """Return the names that the statements of a cell bind at its top level."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def names(tree: ast.Module, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a cell uses in this way, anywhere in it."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


Notebook = dict[str, Any]
Cell = dict[str, Any]

STUB = ("# YOUR CODE HERE", "raise NotImplementedError")
SOLUTION, HIDDEN = "SOLUTION", "HIDDEN TESTS"
_MARK = re.compile(rf"(BEGIN|END) ({SOLUTION}|{HIDDEN})")
_STUB_MARK = "### STUB: "


def source(cell: Cell) -> str:
    """Return the text of a cell; the format allows a string or a list of lines."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def mark(cell: Cell) -> dict[str, Any]:
    """Return a cell's nbgrader metadata, empty if it has none."""
    return dict(cell["metadata"].get("nbgrader", {}))


def tags(cell: Cell) -> list[str]:
    """Return a cell's tags."""
    return list(cell["metadata"].get("tags", []))


def without_regions(cell: Cell, place: str) -> str:
    """Return the source of a code cell as the learner gets it. Raises `DpbookError`, beginning with ``place``."""
    lines = source(cell).split("\n")
    kept: list[str] = []
    end = 0
    for kind, first, last in marked_regions(source(cell), place):
        may = mark(cell).get("solution" if kind == SOLUTION else "grade")
        if not may:
            raise DpbookError(f"{place}: BEGIN {kind} in a cell whose metadata does not allow it")
        kept += lines[end:first]
        if kind == SOLUTION:
            indent = lines[first][: -len(lines[first].lstrip())]
            own = takewhile(lambda line: line.startswith(_STUB_MARK), map(str.lstrip, lines[first + 1 : last]))
            stub = [line.removeprefix(_STUB_MARK).rstrip() for line in own] or STUB
            kept += [indent + line for line in stub]
        end = last + 1
    return "\n".join(kept + lines[end:]).rstrip("\n") if end else source(cell)


def marked_regions(text: str, place: str) -> Iterator[tuple[str, int, int]]:
    """Kind, first and last line of each marked region. Raises `DpbookError` for marks that do not pair up."""
    opened: tuple[str, int] | None = None
    for number, line in enumerate(text.split("\n")):
        here = f"{place}, line {number + 1}"
        for word, kind in _MARK.findall(line):
            if line.strip() != f"### {word} {kind}":
                raise DpbookError(f"{here}: a marker needs its own line, ### {word} {kind}")
            if word == "BEGIN":
                if opened:
                    raise DpbookError(f"{here}: BEGIN {kind} inside BEGIN {opened[0]}")
                opened = kind, number
            elif opened is None or opened[0] != kind:
                raise DpbookError(f"{here}: END {kind} without its BEGIN")
            else:
                yield kind, opened[1], number
                opened = None
    if opened:
        raise DpbookError(f"{place}, line {opened[1] + 1}: BEGIN {opened[0]} without its END")


def title(cell: Cell, number: int) -> str:
    """Return a cell's grade id, id or number, to name it in a message."""
    return f"cell {mark(cell).get('grade_id') or cell.get('id') or number}"


IN_WORDS = "YOUR ANSWER HERE"


def read(path: Path) -> Notebook:
    """Return a notebook as JSON. Raises `DpbookError` if it is none."""
    try:
        nb = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(nb["cells"], list) and nb["nbformat"] == 4:
            return dict(nb)
    except (ValueError, KeyError, TypeError):
        pass
    raise DpbookError(f"{path} is not a notebook of format 4")


def learners(nb: Notebook, name: str) -> Notebook:
    """Return the learner's version of an instructor's notebook; ``name`` is used in errors.

    Raises `DpbookError`, naming notebook and cell, for marks that do not pair up or are where they may not be.
    """
    return {**nb, "cells": [_learners_cell(cell, f"{name}, {title(cell, n)}") for n, cell in enumerate(nb["cells"])]}


def _learners_cell(cell: Cell, place: str) -> Cell:
    if cell["cell_type"] != "code":
        if list(marked_regions(source(cell), place)):
            raise DpbookError(f"{place}: solution and hidden-test markers belong in code cells")
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
    """Return a notebook as nbformat and JupyterLab write it, the same for the same content."""
    return (json.dumps(nb, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

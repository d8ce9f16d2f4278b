"""An instructor's notebook: its references, and the learner's notebook made from it."""

import json
import linecache
from pathlib import Path
from typing import Any

from dpbook.classroom.tasks.load_tasks import list_tasks
from dpbook.classroom.tasks.notebook_cells import (
    KEEP_OUTPUT,
    SETUP,
    Cell,
    Notebook,
    mark,
    marked_regions,
    source,
    tags,
    title,
    without_regions,
)
from dpbook.core import DpbookError

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
    return {task.id: namespace[task.answer] for task in list_tasks() if task.answer_cell in present}


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

"""An instructor's notebook: its references, the learner's notebook made from it, and the faults of its structure.

It follows the tasks of its chapter and nbgrader's schema 3. Each task has one answer cell and, below it, one check
cell:

- the answer cell's grade id is ``answer-05-1``; it is a solution, not graded, not locked, and defines the task's name;
- the check cell's is ``check-05-1``; it is graded with the task's points, locked, no solution, and calls
  ``check("05.1", name)``. Its hidden tests import `check` anew, as a learner may have given that name to something
  else, and end with ``check("05.1", name).points``: nbgrader takes a number that is a cell's value as its points, and
  without one gives full marks to whatever does not raise.

A cell tagged ``setup`` calls ``exercise(5, globals())``, so that a check cell says what is wrong where the answer's
was not run.

An argument in words belongs to no task: its markdown cell ``words-05-1`` is a solution, graded, not locked, and has
points, which a person gives.
"""

import ast
import json
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpbook.classroom.tasks.load_tasks import Task, list_tasks
from dpbook.classroom.tasks.notebook_cells import (
    KEEP_OUTPUT,
    SETUP,
    Cell,
    Notebook,
    defined,
    mark,
    marked_regions,
    names,
    parse_cell,
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


KINDS = {
    "answer": {"solution": True, "grade": False, "locked": False},
    "check": {"solution": False, "grade": True, "locked": True},
    "words": {"solution": True, "grade": True, "locked": False},
}
ANEW = "from dpbook.classroom import check"
COMMON = {"schema_version": 3, "task": False}
_GRADE_ID = re.compile(r"(answer|check|words)-[0-9]{2}-[0-9]+")


def faults(path: Path) -> list[str]:
    """Return the faults of an instructor's notebook ``NN_name.ipynb``, a sentence each, naming notebook and cell."""
    try:
        nb = read(path)
        found = [*_syntax_faults(nb), *_syntax_faults(learners(nb, path.name))]
    except DpbookError as error:
        return [str(error)]
    return [f"{path.name}: {fault}" for fault in found or _faults(nb, list_tasks(int(path.name[:2])))]


def _faults(nb: Notebook, declared: list[Task]) -> Iterator[str]:
    marked = [cell for cell in nb["cells"] if mark(cell)]
    for cell in marked:
        yield from _metadata_faults(cell)
    ids = [mark(cell).get("grade_id") for cell in marked]
    known = {grade_id: task for task in declared for grade_id in (task.answer_cell, task.check_cell)}
    for grade_id in sorted(known.keys() | set(map(str, ids))):
        if grade_id.startswith("words-"):
            if ids.count(grade_id) != 1:
                yield f"there are {ids.count(grade_id)} cells {grade_id}, where one is wanted"
        elif grade_id not in known:
            yield f"cell {grade_id} belongs to no task of this chapter"
        elif ids.count(grade_id) != 1:
            yield f"task {known[grade_id].id} needs exactly one cell {grade_id}, there are {ids.count(grade_id)}"
    cells = {grade_id: cell for grade_id, cell in zip(ids, marked, strict=True) if ids.count(grade_id) == 1}
    for task in declared:
        if task.answer_cell in cells and task.check_cell in cells:
            yield from _task_faults(task, cells[task.answer_cell], cells[task.check_cell])
            if ids.index(task.check_cell) < ids.index(task.answer_cell):
                yield f"cell {task.check_cell} stands above the answer that it checks"
    yield from _picture_faults(nb, {task.answer for task in declared})
    yield from _skipped_faults(nb)
    if declared and not any(SETUP in tags(cell) and _begins(source(cell), declared[0].chapter) for cell in nb["cells"]):
        yield f"no cell tagged {SETUP} calls exercise({declared[0].chapter}, globals())"


def _metadata_faults(cell: Cell) -> Iterator[str]:
    meta = mark(cell)
    grade_id = str(meta.get("grade_id"))
    if not _GRADE_ID.fullmatch(grade_id):
        yield f"cell {grade_id}: a grade id is answer-NN-K, check-NN-K or words-NN-K"
        return
    kind = grade_id.partition("-")[0]
    wanted: dict[str, Any] = {**COMMON, **KINDS[kind]}
    for key, expected in wanted.items():
        if meta.get(key) != expected:
            yield f"cell {grade_id}: nbgrader's {key} must be {expected}, is {meta.get(key)}"
    if cell["cell_type"] != (cell_type := "markdown" if kind == "words" else "code"):
        yield f"cell {grade_id} must be a {cell_type} cell"
    if kind == "words" and not (type(points := meta.get("points")) is int and points > 0):
        yield f"cell {grade_id}: points must be a whole number above 0, are {points}"


def _task_faults(task: Task, answer: Cell, check: Cell) -> Iterator[str]:
    if task.answer not in defined(parse_cell(source(answer))):
        yield f"cell {task.answer_cell} does not define {task.answer}"
    if without_regions(answer, "") == source(answer):
        yield f"cell {task.answer_cell} has no solution between marks: a learner would see it"
    if mark(check).get("points") != task.points:
        yield f"cell {task.check_cell}: points must be {task.points}, are {mark(check).get('points')}"
    if not any(_is_check(node, task) for node in ast.walk(parse_cell(without_regions(check, "")))):
        yield f'cell {task.check_cell} does not call check("{task.id}", {task.answer})'
    last = parse_cell(source(check)).body[-2:]
    value = last[-1].value if last and isinstance(last[-1], ast.Expr) else None
    if not (last and ast.unparse(last[0]) == ANEW):
        yield f"cell {task.check_cell}: hidden tests must say {ANEW}"
    if not (isinstance(value, ast.Attribute) and value.attr == "points" and _is_check(value.value, task)):
        yield f'cell {task.check_cell}: hidden tests must end with check("{task.id}", {task.answer}).points'


def _picture_faults(nb: Notebook, answered: set[str]) -> Iterator[str]:
    """A picture that the learner gets must not be drawn from the solution."""
    for cell in nb["cells"]:
        if KEEP_OUTPUT in tags(cell):
            used = {node.id for node in ast.walk(parse_cell(source(cell))) if isinstance(node, ast.Name)}
            if mark(cell) or used & answered:
                what = ", ".join(sorted(used & answered)) or "an answer or its check"
                yield f"cell {cell.get('id')}: its output is kept for the learner, but comes from {what}"


def _skipped_faults(nb: Notebook) -> Iterator[str]:
    """A picture that is there already invites to skip its cell: what other cells need is defined elsewhere."""
    parsed = [(cell, parse_cell(source(cell))) for cell in nb["cells"] if cell["cell_type"] == "code"]
    kept, others = ([pair for pair in parsed if (KEEP_OUTPUT in tags(pair[0])) is is_kept] for is_kept in (True, False))
    used = {name for _, tree in others for name in names(tree, ast.Load)}
    elsewhere = {name for _, tree in others for name in (*names(tree, ast.Store), *defined(tree))}
    for cell, tree in kept:
        needed = defined(tree) & used - elsewhere
        if needed:
            yield f"cell {cell.get('id')}: its output is kept, but other cells need {', '.join(sorted(needed))}"


def _begins(text: str, chapter: int) -> bool:
    return any(ast.unparse(node) == f"exercise({chapter}, globals())" for node in parse_cell(text).body)


def _is_check(node: ast.AST, task: Task) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="check"), args=[ast.Constant(value=task_id), ast.Name(id=name)]):
            return bool(task_id == task.id and name == task.answer)
    return False


def _syntax_faults(nb: Notebook) -> Iterator[str]:
    for number, cell in enumerate(nb["cells"]):
        if cell["cell_type"] == "code":
            try:
                parse_cell(source(cell))
            except SyntaxError as error:
                yield f"{title(cell, number)} is no Python: {error.msg} in line {error.lineno}"

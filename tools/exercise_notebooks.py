"""The learner's exercises, made from the instructor's: ``python -m tools.exercise_notebooks``.

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

An instructor's notebook follows the tasks of its chapter and nbgrader's schema 3. Each task has one answer cell and,
below it, one check cell:

- the answer cell's grade id is ``answer-05-1``; it is a solution, not graded, not locked, and defines the task's name;
- the check cell's is ``check-05-1``; it is graded with the task's points, locked, no solution, and calls
  ``check("05.1", name)``. Its hidden tests import `check` anew, as a learner may have given that name to something
  else, and end with ``check("05.1", name).points``: nbgrader takes a number that is a cell's value as its points, and
  without one gives full marks to whatever does not raise.

A cell tagged ``setup`` calls ``exercise(5, globals())``, so that a check cell says what is wrong where the answer's
was not run.

An argument in words belongs to no task: its markdown cell ``words-05-1`` is a solution, graded, not locked, and has
points, marked by a person.
"""

import ast
import sys
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
    dumps,
    learners,
    mark,
    marked_regions,
    names,
    parse_cell,
    read,
    source,
    tags,
    title,
)
from dpbook.core import DpbookError, checkout, write_atomically


def generated(root: Path) -> dict[Path, bytes]:
    """Return the content that each learner's notebook below ``root/exercises`` should have. Raises `DpbookError`."""
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


METADATA = {
    "answer": {"solution": True, "grade": False, "locked": False},
    "check": {"solution": False, "grade": True, "locked": True},
    "words": {"solution": True, "grade": True, "locked": False},
}
"""nbgrader's metadata by the kind of a cell, without grade id and points."""
CHECK = """\
check("{id}", {answer})
### BEGIN HIDDEN TESTS
from dpbook.classroom import check
check("{id}", {answer}, seed=1).points
### END HIDDEN TESTS"""
"""Source of a check cell."""


def faults(path: Path) -> list[str]:
    """Return the faults of an instructor's notebook ``NN_name.ipynb``, a sentence each, naming notebook and cell."""
    try:
        nb = read(path)
        found = [*_syntax_faults(nb), *_syntax_faults(learners(nb, path.name))]
    except DpbookError as error:
        return [str(error)]
    return [f"{path.name}: {fault}" for fault in found or _faults(nb, list_tasks(int(path.name[:2])))]


def _faults(nb: Notebook, declared: list[Task]) -> Iterator[str]:
    marked = [(str(mark(cell).get("grade_id")), cell) for cell in nb["cells"] if mark(cell)]
    wanted = [grade_id for task in declared for grade_id in (task.answer_cell, task.check_cell)]
    found = [grade_id for grade_id, _ in marked if not grade_id.startswith("words-")]
    if found != wanted:
        yield f"the cells of its tasks must be {', '.join(wanted)}, and are {', '.join(found)}"
        return
    cells = dict(marked)
    if len(cells) < len(marked):
        yield "two cells for arguments in words have one grade id"
    points = {task.check_cell: task.points for task in declared}
    for grade_id, cell in marked:
        yield from _metadata_faults(grade_id, cell, points.get(grade_id))
    for task in declared:
        yield from _task_faults(task, source(cells[task.answer_cell]), source(cells[task.check_cell]))
    yield from _picture_faults(nb, {task.answer for task in declared})
    yield from _skipped_faults(nb)
    if declared and not any(SETUP in tags(cell) and _begins(source(cell), declared[0].chapter) for cell in nb["cells"]):
        yield f"no cell tagged {SETUP} calls exercise({declared[0].chapter}, globals())"


def _metadata_faults(grade_id: str, cell: Cell, points: int | None) -> Iterator[str]:
    """``points`` are those of the task that the cell checks; an argument in words has points of its own."""
    kind = grade_id.partition("-")[0]
    wanted: dict[str, Any] = {"schema_version": 3, "task": False, **METADATA[kind], "grade_id": grade_id}
    if kind != "answer":
        wanted["points"] = mark(cell).get("points") if points is None else points
    if mark(cell) != wanted:
        yield f"cell {grade_id}: nbgrader's metadata must be {wanted}, are {mark(cell)}"
    if cell["cell_type"] != (cell_type := "markdown" if kind == "words" else "code"):
        yield f"cell {grade_id} must be a {cell_type} cell"
    if kind == "words" and not (type(wanted["points"]) is int and wanted["points"] > 0):
        yield f"cell {grade_id}: points must be a whole number above 0, are {wanted['points']}"


def _task_faults(task: Task, answer: str, check: str) -> Iterator[str]:
    if task.answer not in defined(parse_cell(answer)):
        yield f"cell {task.answer_cell} does not define {task.answer}"
    if not list(marked_regions(answer, "")):
        yield f"cell {task.answer_cell} has no solution between marks: a learner would see it"
    if check != (wanted := CHECK.format(id=task.id, answer=task.answer)):
        yield f"cell {task.check_cell} must be\n{wanted}"


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


def _syntax_faults(nb: Notebook) -> Iterator[str]:
    for number, cell in enumerate(nb["cells"]):
        if cell["cell_type"] == "code":
            try:
                parse_cell(source(cell))
            except SyntaxError as error:
                yield f"{title(cell, number)} is no Python: {error.msg} in line {error.lineno}"


def main() -> int:
    """Write all learner's notebooks that are stale; on any fault write none. Returns the exit status."""
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

"""Wrong answers that are edits of the reference solution: what the instructor's notebook has, but for one mistake.

The code of a chapter's mutants also runs where no solution can be read, as `mutants_text` puts it together.
"""

import linecache
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpbook.classroom import list_tasks
from dpbook.classroom.tasks.notebook_cells import SETUP, Cell, Notebook, mark, read, source, tags
from dpbook.core import checkout


@dataclass(frozen=True)
class Mutant:
    """A wrong answer to a task, and the name of the check that is there to catch it."""

    task: str
    name: str
    answer: Any
    caught_by: str


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


@cache
def reference(task: str) -> tuple[str, str, str]:
    """Return the imports of a task's exercise, the name of its answer, and the text of the reference solution."""
    (path,) = (checkout.root() / "exercises" / "solutions").glob(f"{task[:2]}_*.ipynb")
    (asked,) = [each for each in list_tasks(int(task[:2])) if each.id == task]
    notebook = read(path)
    (setup,) = [source(cell) for cell in notebook["cells"] if SETUP in tags(cell)]
    return setup.partition("\nexercise(")[0], asked.answer, answer_cells(notebook)[asked.answer_cell]


def edited(task: str, changes: dict[str, str]) -> Any:
    """Return the answer to a task after changes of its reference: what stands there, and what stands there instead."""
    imports, name, text = reference(task)
    for old, new in changes.items():
        assert old in text, f"the reference of task {task} does not have {old!r}"
        text = text.replace(old, new)
    namespace = {"__name__": "__main__"}
    exec(compile(f"{imports}\n{text}", f"<answer to {task}>", "exec"), namespace)
    return namespace[name]


def edit(task: str, name: str, changes: dict[str, str], caught_by: str) -> Mutant:
    """Return the mutant that is `edited` so."""
    return Mutant(task, name, edited(task, changes), caught_by)


def named(mutants: tuple[Mutant, ...], task: str, *names: str) -> list[tuple[str, Any]]:
    """Return the task and the answer of each of these mutants."""
    return [(task, next(each.answer for each in mutants if (each.task, each.name) == (task, name))) for name in names]


def mutants_text(chapter: int) -> str:
    """Return the code of a chapter's mutants, this module's included, as one cell that needs nothing but dpbook."""
    here = Path(__file__)
    own = (here.parent / f"ch{chapter:02}.py").read_text(encoding="utf-8")
    references = {task.id: reference(task.id) for task in list_tasks(chapter)}
    without_import = re.sub(r"^from tests\..*\n", "", own, flags=re.MULTILINE)
    return "\n".join([here.read_text(encoding="utf-8"), f"reference = {references!r}.__getitem__", without_import])

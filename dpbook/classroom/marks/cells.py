"""The answer cell of each task in a submitted notebook, found by its id, or else by the name that it defines."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpbook.classroom.marks.submitted_notebook import Cell, InWords, Unreadable, code_cells, in_words, text_cells
from dpbook.classroom.tasks.definition import Task
from dpbook.classroom.tasks.load_tasks import list_tasks
from dpbook.classroom.tasks.notebook_cells import KEEP_OUTPUT, SETUP, defined, parse_cell, used
from dpbook.classroom.tasks.numbers import current_course
from dpbook.core import checkout

_GRADE_ID = re.compile(r"(answer|check)-([0-9]{2})-([1-9][0-9]?)")
_BEGINS = re.compile(r"exercise\(([0-9]{1,2}), globals\(\)")
_COURSE = re.compile(r"exercise\([0-9]{1,2}, globals\(\), course=([0-9]+)\)")
_CHECKS = re.compile(r"check\([\"']([0-9]{2})\.[0-9]+[\"']")
_NAME = re.compile(r"^([0-9]{2})_")


@dataclass(frozen=True)
class Taken:
    """The text of a task's answer, None where there is none, and what is to be said of it."""

    task: Task
    text: str | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """Answers taken from a notebook, and remarks on all of it."""

    chapter: int
    answers: tuple[Taken, ...]
    remarks: tuple[str, ...]
    words: tuple[InWords, ...]
    """What a person is to mark."""


def take(path: Path) -> Exercise:
    """The answers in the notebook at ``path``. Raises `Unreadable`, also for one that is no exercise of the book."""
    cells = code_cells(path)
    chapter = _chapter(cells, path.name)
    asked = list_tasks(chapter) if chapter is not None else []
    if chapter is None or not asked or not _reference(chapter):
        raise Unreadable("is no exercise of this book: none of its cells belongs to one")
    answers = tuple(_answer(task, cells) for task in asked)
    return Exercise(chapter, answers, tuple(_remarks(chapter, cells)), in_words(chapter, text_cells(path)))


def exercise_of(path: Path) -> int | None:
    """The chapter whose exercise the notebook at ``path`` seems to be; of one that cannot be read, by its name."""
    try:
        cells = code_cells(path)
    except Unreadable:
        cells = []
    return _chapter(cells, path.name)


def _chapter(cells: Sequence[Cell], name: str) -> int | None:
    ids = Counter(found[2] for cell in cells if (found := _GRADE_ID.fullmatch(cell.grade_id)))
    texts = Counter(found for cell in cells for found in (*_BEGINS.findall(cell.source), *_CHECKS.findall(cell.source)))
    named = Counter(_NAME.findall(name)[:1])
    return next((int(found.most_common(1)[0][0]) for found in (ids, texts, named) if found), None)


def _answer(task: Task, cells: Sequence[Cell]) -> Taken:
    own_id = f"answer-{task.id.partition('.')[2]}"
    held = [c for c in cells if c.grade_id == task.answer_cell or (c.id == own_id and not _of_another(c, task))]
    defining = [c for c in cells if task.answer in _defined(c.source) and SETUP not in c.tags]
    right = [cell for cell in held if cell in defining]
    remarks = []
    if len(held) > 1:
        right = [cell for cell in right if cell.id == own_id][-1:] or right[-1:]
        which = "the one with the first id" if right and right[0].id == own_id else "the last of them"
        remarks.append(f"{len(held)} cells are marked as the answer to {task.id}: {which} was graded")
    if not right and (elsewhere := [cell for cell in defining if cell not in held]):
        right = elsewhere[-1:]
        why = "defines it" if held else "is there"
        remarks.append(f"no cell {task.answer_cell} {why}: {task.answer} was found in another cell, which was graded")
    chosen = (right or held)[-1:]
    if not chosen:
        remarks.append(f"the cell {task.answer_cell} is missing, and no other cell defines {task.answer}")
        return Taken(task, None, tuple(remarks))
    text = chosen[0].source
    if not text.strip():
        return Taken(task, None, (*remarks, f"the cell {task.answer_cell} is empty"))
    return Taken(task, text, (*remarks, *_lost(task, text, cells)))


def _of_another(cell: Cell, task: Task) -> bool:
    return bool(_GRADE_ID.fullmatch(cell.grade_id)) and cell.grade_id != task.answer_cell


def _lost(task: Task, text: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Names that the answer uses and that only cells define which are not taken."""
    reference = _reference(task.chapter)
    given = {name for cell in reference for name in _bound(cell.source)}
    own = {name for cell in cells if not _GRADE_ID.fullmatch(cell.grade_id) for name in _bound(cell.source)}
    for name in sorted(_used(text) & own - given - _bound(text)):
        yield f"{name} stands in a cell of your own, and only answer cells are taken: move it into {task.answer_cell}"


def _remarks(chapter: int, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the signs that the notebook is of another edition of the book, or of another course."""
    of = next((f"course {found[1]}" for cell in cells if (found := _COURSE.search(cell.source))), "the book")
    by = "the book" if current_course() is None else f"course {current_course()}"
    if of != by:
        yield f"the notebook asks for the numbers of {of}, and was graded by those of {by}"
    known = {task.answer_cell: task for task in list_tasks(chapter)} | {
        task.check_cell: task for task in list_tasks(chapter)
    }
    for cell in cells:
        if cell.grade_id.startswith(("answer-", "check-")) and cell.grade_id not in known:
            yield f"the cell {cell.grade_id!r} belongs to no task of this edition, and was left out"
        elif cell.grade_id.startswith("check-") and cell.points != known[cell.grade_id].points:
            task = known[cell.grade_id]
            yield f"{task.id} is worth {task.points} points in this edition, and {cell.points} in this notebook"


def program(task: Task, answers: Sequence[Taken]) -> list[tuple[str, str]]:
    """Name and text of the cells to run for a task: setup, what the answer uses of the others, and the answer."""
    texts = {taken.task.answer_cell: taken.text or "" for taken in answers}
    others = [(cell, texts.get(cell.grade_id, cell.source)) for cell in _reference(task.chapter)]
    own = texts[task.answer_cell]
    chosen, needed = {task.answer_cell}, _used(own)
    while True:
        more = {_name(cell) for cell, text in others if _defined(text) & needed and _usable(cell)} - chosen
        if not more:
            break
        chosen |= more
        needed |= {name for cell, text in others if _name(cell) in more for name in _used(text)}
    return [(f"<{_name(cell)}>", _python(text)) for cell, text in others if _name(cell) in chosen or SETUP in cell.tags]


def needs_torch(cells: Sequence[tuple[str, str]]) -> bool:
    """Whether one of these cells imports torch."""
    return any(re.search(r"^[^\S\n]*(import|from) torch\b", text, re.MULTILINE) for _, text in cells)


@cache
def _reference(chapter: int) -> tuple[Cell, ...]:
    """The cells of code of the exercise as a learner gets it; empty where there is none."""
    path = _published(chapter)
    return tuple(code_cells(path)) if path else ()


def _published(chapter: int) -> Path | None:
    return next(iter(sorted((checkout.root() / "exercises").glob(f"{chapter:02}_*.ipynb"))), None)


def _usable(cell: Cell) -> bool:
    return not cell.grade_id.startswith("check-") and KEEP_OUTPUT not in cell.tags


def _name(cell: Cell) -> str:
    return cell.grade_id or cell.id


def _python(text: str) -> str:
    """Lines for IPython or the shell are no Python."""
    return "\n".join(f"#{line}" if line.startswith(("%", "!")) else line for line in text.split("\n"))


def _defined(text: str) -> set[str]:
    return _names(text)[0]


def _bound(text: str) -> set[str]:
    return _defined(text) | _names(text)[2]


def _used(text: str) -> set[str]:
    return _names(text)[1]


@cache
def _names(text: str) -> tuple[set[str], set[str], set[str]]:
    """Names that a cell defines, those that it reads, those that it imports; none of one that is no Python."""
    try:
        tree = parse_cell(text)
        aliases = (
            alias for node in ast.walk(tree) for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)
        )
        return defined(tree), used(tree), {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set(), set()

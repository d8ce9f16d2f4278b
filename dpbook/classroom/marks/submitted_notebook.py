"""An untrusted notebook: its cells, the answer to each task (by cell id or name), and answers to questions."""

import ast
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dpbook import __version__
from dpbook.classroom.tasks.expectations import current_course
from dpbook.classroom.tasks.load_tasks import Task, list_tasks
from dpbook.classroom.tasks.notebook_cells import IN_WORDS, KEEP_OUTPUT, SETUP, as_python, defined, names, parse_cell
from dpbook.classroom.tasks.write_your_own import called_in
from dpbook.core import DpbookError, checkout

MAX_BYTES = 20 * 2**20
MAX_CODE = 500_000
"""Most characters of code in a notebook: ten times as many as the longest exercise with its solutions."""
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz")


class Unreadable(DpbookError):
    """A file that is not a gradable notebook; the message tells its author why."""


class Cell(NamedTuple):
    """A cell: its id, nbgrader's metadata, and its text."""

    id: str
    grade_id: str
    points: Any
    tags: tuple[str, ...]
    source: str

    @property
    def name(self) -> str:
        return self.grade_id or self.id


class SubmittedNotebook(NamedTuple):
    """The code cells and the Markdown cells of a notebook, in order, and the version of the book that it is from."""

    code: list[Cell]
    texts: list[Cell]
    version: str


def is_archive(path: Path) -> bool:
    """Whether the file name is that of an archive."""
    return path.suffix.lower() in ARCHIVES


def _open(path: Path) -> SubmittedNotebook:
    """Return the notebook at ``path``. Raises `Unreadable`."""
    try:
        found = json.loads(_bytes(path))
    except (ValueError, RecursionError):
        why = "unpack it" if is_archive(path) else "its text is not valid JSON"
        raise Unreadable(f"is not a notebook: {why}") from None
    if not isinstance(found, dict) or not isinstance(found.get("cells"), list):
        old = isinstance(found, dict) and "worksheets" in found
        why = "is a notebook in an old format: open it in JupyterLab and save it" if old else "is not a notebook"
        raise Unreadable(why)
    cells = [each for each in found["cells"] if isinstance(each, dict)]
    code, texts = ([_cell(each) for each in cells if each.get("cell_type") == kind] for kind in ("code", "markdown"))
    size = sum(len(cell.source) for cell in code)
    if size > MAX_CODE:
        raise Unreadable(
            f"has {size:,} characters of code, more than the limit of {MAX_CODE:,}: remove cells that are not yours"
        )
    return SubmittedNotebook(code, texts, _text(_dict(_dict(found.get("metadata")).get("dpbook")).get("version")))


def _bytes(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        link = "is a symbolic link, and links are not followed"
        raise Unreadable(link if path.is_symlink() else f"cannot be read: {error.strerror}") from None
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise Unreadable("is not a regular file")
        if about.st_size > MAX_BYTES:
            size = f"has {about.st_size / 2**20:,.0f} MB, more than the limit of {MAX_BYTES / 2**20:.0f}"
            raise Unreadable(f"{size}: clear its outputs and save it")
        return file.read(MAX_BYTES + 1)


def _cell(cell: dict[str, Any]) -> Cell:
    meta = _dict(cell.get("metadata"))
    marks = _dict(meta.get("nbgrader"))
    source, tags = cell.get("source"), meta.get("tags")
    lines = source if isinstance(source, list) else [source]
    return Cell(
        _text(cell.get("id")),
        _text(marks.get("grade_id")),
        marks.get("points"),
        tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        "".join(line for line in lines if isinstance(line, str)),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value[:100] if isinstance(value, str) else ""


LONGEST = 20_000
"""Characters that are shown of an answer; the questions ask for 150 words."""
_RUBRIC = "*Marks.*"
_EARNS = re.compile(r"(?:^|\. )([0-9]+): ")


@dataclass(frozen=True)
class WrittenQuestion:
    """A question for an argument in words, whose ``possible`` points a person gives: the ``rubric`` says for what.

    ``text`` is the question in Markdown; ``answer`` is empty where there is none; ``given`` are the points that it has
    got, None before.
    """

    id: str
    title: str
    possible: int
    answer: str
    rubric: tuple[tuple[int, str], ...]
    given: int | None = None
    text: str = ""


def in_words(chapter: int, cells: Sequence[Cell]) -> tuple[WrittenQuestion, ...]:
    """Return the chapter's questions in words, with what the ``cells`` of a handed in notebook answer."""
    written = {cell.grade_id: cell.source.strip() for cell in cells}
    found = []
    for question in _asked(chapter):
        text = written.get(question.id, "")
        answer = "" if text == IN_WORDS else text if len(text) <= LONGEST else f"{text[:LONGEST]}… (cut)"
        found.append(replace(question, answer=answer))
    return tuple(found)


@cache
def _asked(chapter: int) -> tuple[WrittenQuestion, ...]:
    """Return the chapter's questions without an answer; none where there is no exercise."""
    folder = checkout.solutions() if checkout.is_checkout() else checkout.book() / "exercises"
    path = next(iter(sorted(folder.glob(f"{chapter:02}_*.ipynb"))), None)
    found = []
    title = text = ""
    for cell in _open(path).texts if path else ():
        if cell.grade_id.startswith("words-"):
            points = int(cell.points)
            # The end of a model answer, "*Marks.* 1: this. 2: that." A learner's notebook has none.
            parts = _EARNS.split(cell.source.partition(_RUBRIC)[2].strip())[1:]
            rubric = tuple((int(n), earns.rstrip(".")) for n, earns in zip(parts[::2], parts[1::2], strict=True))
            rubric = rubric or ((points, f"see the rubric in {checkout.repository()}"),)
            found.append(WrittenQuestion(cell.grade_id, title, points, "", rubric, text=text))
        elif cell.source.startswith("## "):
            heading, _, text = cell.source.partition("\n")
            title, text = heading.removeprefix("## ").partition(" (")[0], text.strip()
    return tuple(found)


_GRADE_ID = re.compile(r"(answer|check)-([0-9]{2})-([1-9][0-9]?)")
_BEGINS = re.compile(r"exercise\(([0-9]{1,2}), globals\(\)")
_COURSE = re.compile(r"exercise\([0-9]{1,2}, globals\(\), course=([0-9]+)\)")
_CHECKS = re.compile(r"check\([\"']([0-9]{2})\.[0-9]+[\"']")
_NAME = re.compile(r"^([0-9]{2})_")


class AnswerSource(NamedTuple):
    """Source of a task's answer (None if it is missing), with remarks on it."""

    task: Task
    text: str | None
    remarks: tuple[str, ...] = ()


class Exercise(NamedTuple):
    """Answers read from a notebook, remarks on all of it, and its questions in ``words``, which a person marks."""

    chapter: int
    answers: tuple[AnswerSource, ...]
    remarks: tuple[str, ...]
    words: tuple[WrittenQuestion, ...]


def read_exercise(path: Path) -> Exercise:
    """Return the answers in the notebook at ``path``. Raises `Unreadable`, also if it is no exercise of the book."""
    notebook = _open(path)
    chapter = _chapter(notebook.code, path.name)
    asked = list_tasks(chapter) if chapter is not None else []
    if chapter is None or not asked or not _reference(chapter):
        raise Unreadable("is not an exercise of this book: no cell has the id of one")
    answers = tuple(_answer(task, notebook.code) for task in asked)
    return Exercise(chapter, answers, tuple(_remarks(chapter, notebook)), in_words(chapter, notebook.texts))


def exercise_of(path: Path) -> int | None:
    """Guess the chapter of the exercise at ``path`` from its cells, or from the file name if it cannot be read."""
    try:
        cells = _open(path).code
    except Unreadable:
        cells = []
    return _chapter(cells, path.name)


def _chapter(cells: Sequence[Cell], name: str) -> int | None:
    ids = Counter(found[2] for cell in cells if (found := _GRADE_ID.fullmatch(cell.grade_id)))
    texts = Counter(found for cell in cells for found in (*_BEGINS.findall(cell.source), *_CHECKS.findall(cell.source)))
    named = Counter(_NAME.findall(name)[:1])
    return next((int(found.most_common(1)[0][0]) for found in (ids, texts, named) if found), None)


def _answer(task: Task, cells: Sequence[Cell]) -> AnswerSource:
    own_id = f"answer-{task.id.partition('.')[2]}"
    others = [cell for cell in cells if _GRADE_ID.fullmatch(cell.grade_id) and cell.grade_id != task.answer_cell]
    held = [c for c in cells if c.grade_id == task.answer_cell or (c.id == own_id and c not in others)]
    defining = [c for c in cells if task.answer in _names(c.source).defined and SETUP not in c.tags]
    right = [cell for cell in held if cell in defining]
    remarks = []
    if len(held) > 1:
        right = [cell for cell in right if cell.id == own_id][-1:] or right[-1:]
        which = "the one with the first id" if right and right[0].id == own_id else "the last of them"
        remarks.append(f"{len(held)} cells are marked as the answer to {task.id}: {which} was graded")
    if not right and (elsewhere := [cell for cell in defining if cell not in held]):
        right = elsewhere[-1:]
        why = "does not define it" if held else "is missing"
        remarks.append(f"the cell {task.answer_cell} {why}: another cell that defines {task.answer} was graded")
    chosen = (right or held)[-1:]
    if not chosen:
        remarks.append(f"the cell {task.answer_cell} is missing, and no other cell defines {task.answer}")
        return AnswerSource(task, None, tuple(remarks))
    text = chosen[0].source
    if not text.strip():
        return AnswerSource(task, None, (*remarks, f"the cell {task.answer_cell} is empty"))
    solved = (
        f"the answer to {task.id} calls {name}, which solves the task: implement it yourself"
        for name in called_in(text, task.write_your_own)
    )
    return AnswerSource(task, text, (*remarks, *_lost(task, text, cells), *solved))


def _lost(task: Task, text: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield names that the answer uses but that are defined only in cells that are not graded."""
    given = {name for cell in _reference(task.chapter) for name in _names(cell.source).bound}
    own = {name for cell in cells if not _GRADE_ID.fullmatch(cell.grade_id) for name in _names(cell.source).bound}
    mine = _names(text)
    for name in sorted(mine.used & own - given - mine.bound):
        yield f"{name} is defined in a cell that is not graded: move it into {task.answer_cell}"


def _remarks(chapter: int, notebook: SubmittedNotebook) -> Iterator[str]:
    """Yield remarks if the notebook is of another version, whose tasks may have other numbers, or another course."""
    if notebook.version and notebook.version != __version__:
        yield f"the notebook is from version {notebook.version} of the book, but is graded with version {__version__}"
    of = next((f"course {found[1]}" for cell in notebook.code if (found := _COURSE.search(cell.source))), "the book")
    by = "the book" if current_course() is None else f"course {current_course()}"
    if of != by:
        yield f"the notebook has the numbers of {of}, but was graded with those of {by}"
    known = {grade_id: task for task in list_tasks(chapter) for grade_id in (task.answer_cell, task.check_cell)}
    for cell in notebook.code:
        if cell.grade_id.startswith(("answer-", "check-")) and cell.grade_id not in known:
            yield f"the cell {cell.grade_id!r} belongs to no task of this edition and was ignored"
        elif cell.grade_id.startswith("check-") and cell.points != known[cell.grade_id].points:
            task = known[cell.grade_id]
            yield f"{task.id} is worth {task.points} points in this edition, and {cell.points} in this notebook"


def program(task: Task, answers: Sequence[AnswerSource]) -> list[tuple[str, str]]:
    """Name and text of the cells to run for a task: setup, what the answer uses of the others, and the answer."""
    texts = {source.task.answer_cell: source.text or "" for source in answers}
    cells = [cell._replace(source=texts.get(cell.grade_id, cell.source)) for cell in _reference(task.chapter)]
    usable = [cell for cell in cells if not cell.grade_id.startswith("check-") and KEEP_OUTPUT not in cell.tags]
    chosen, needed = {task.answer_cell}, _names(texts[task.answer_cell]).used
    while more := [c for c in usable if c.name not in chosen and _names(c.source).defined & needed]:
        chosen |= {cell.name for cell in more}
        needed = needed.union(*(_names(cell.source).used for cell in more))
    return [(f"<{c.name}>", as_python(c.source)) for c in cells if c.name in chosen or SETUP in c.tags]


def needs_torch(cells: Sequence[tuple[str, str]]) -> bool:
    """Whether one of these cells imports torch."""
    return any(re.search(r"^[^\S\n]*(import|from) torch\b", text, re.MULTILINE) for _, text in cells)


@cache
def _reference(chapter: int) -> tuple[Cell, ...]:
    """Return the code cells of the exercise as a learner gets it; empty if there is no exercise."""
    path = next(iter(sorted((checkout.book() / "exercises").glob(f"{chapter:02}_*.ipynb"))), None)
    return tuple(_open(path).code) if path else ()


def given_text(task_id: str) -> str:
    """Return the answer cell of a task as a learner gets it."""
    cell_of = f"answer-{task_id.replace('.', '-')}"
    return next((cell.source for cell in _reference(int(task_id[:2])) if cell.grade_id == cell_of), "")


class _Names(NamedTuple):
    """The names that a cell defines, those that it reads, and those that it defines or imports."""

    defined: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()


@cache
def _names(text: str) -> _Names:
    """Return the names of a cell; none if it is not valid Python."""
    try:
        tree = parse_cell(text)
        own = defined(tree)
        aliases = [node for node in ast.walk(tree) if isinstance(node, ast.alias)]
        imported = {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        return _Names(frozenset(own), frozenset(names(tree, ast.Load)), frozenset(own | imported))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _Names()

"""The two pages of docs/teaching that are made from the book: what is asked in each task, and a course week by week.

python -m tests.classroom.teaching    # writes docs/teaching/tasks.md and syllabus.md

It lies here and not in dpbook, because the wrong answers are the tests' own and are not installed.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from dpbook.classroom import Task, list_tasks
from dpbook.classroom.marks.submitted_notebook import WrittenQuestion, in_words
from dpbook.classroom.tasks.notebook_cells import read, source
from dpbook.core import checkout, write_atomically
from tests.classroom.mutants.edits import Mutant

PLACE = checkout.root() / "docs" / "teaching"
PLANS = ("Four weeks", "Eight weeks")
"""The columns of chapter 00's table, after the first."""

_OBJECTIVE = re.compile(r"^\d+\. (.*?)(?:,|, and|\.)?$", re.MULTILINE)
_REFERENCES = re.compile(r" \(exercises? ([^)]*)\)")
_MINUTES = re.compile(r"about (an hour|(\d+) minutes)")

MADE = "*Made from the book by `python -m tests.classroom.teaching`; a test compares. Change the book, not this page.*"
TASKS = f"""# Objectives, tasks, points, misconceptions

{MADE}

Each chapter begins with its objectives; the exercise of the same number tests them. A task has one or more checks, each
with its own points. Next to each check are the wrong answers that it is known to catch: mistakes that people make, kept
as code in `tests/classroom/mutants/chNN.py`. A wrong answer may also fail other checks. The message of each check is in
`dpbook/book/chNN/tasks.toml`.

A question in words has no check; [rubrics.md](rubrics.md) shows how to mark it. Task 00.1, one point, is a trial in
chapter 00; it is not handed in.
"""
SYLLABUS = f"""# Syllabus

{MADE}

These are the two plans of chapter 00; the shorter one leaves chapters out. The hours are sums of the times that
chapters and exercises state; they were not measured on a class. The first number of points is what `dpbook grade`
gives, the number after the + what a person gives. [tasks.md](tasks.md) has the tasks of each exercise, and
[README.md](README.md) shows how to shorten a plan.
"""


@dataclass(frozen=True)
class Objective:
    """Goals of a chapter, and the place that asks for each: ids of tasks, or "in words"."""

    text: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Unit:
    """A chapter with its exercise. ``practice``: minutes that the exercise says it takes."""

    label: str
    title: str
    question: str
    minutes: int
    practice: int
    objectives: tuple[Objective, ...]
    tasks: tuple[Task, ...]
    words: tuple[WrittenQuestion, ...]

    @property
    def number(self) -> int:
        """The number of the chapter, and of its exercise."""
        return int(self.label[:2])

    @property
    def points(self) -> int:
        """Goals of the tasks that a check judges."""
        return sum(task.points for task in self.tasks)

    @property
    def by_hand(self) -> int:
        """Points that a person gives."""
        return sum(question.possible for question in self.words)


@cache
def units() -> list[Unit]:
    """All chapters."""
    return [_unit(chapter) for chapter in checkout.chapters()]


def _unit(chapter: checkout.Chapter) -> Unit:
    opening = opening_of(chapter.path)
    exercise = checkout.root() / "exercises" / chapter.path.name
    there = exercise.is_file()
    question = opening.split("**")[1]
    return Unit(
        chapter.label,
        chapter.title,
        question,
        chapter.minutes,
        _practice(exercise) if there else 0,
        tuple(objectives(opening)),
        tuple(list_tasks(chapter.number)) if there else (),
        in_words(chapter.number, []) if there else (),
    )


def opening_of(path: Path) -> str:
    """Return the text of a chapter from its title to its objectives and the time that it takes."""
    cells = [each for each in read(path)["cells"] if each["cell_type"] == "markdown"]
    return "\n\n".join(map(source, cells[:2]))


def objectives(opening: str) -> list[Objective]:
    """Goals that a chapter's opening lists, without the places that ask for them."""
    found = _OBJECTIVE.findall(opening)
    return [Objective(_REFERENCES.sub("", text), tuple(_asked(text))) for text in found]


def _asked(text: str) -> list[str]:
    references = _REFERENCES.findall(text)
    return [place for one in references for place in re.findall(r"\d\d\.\d|in words", one)]


def _practice(exercise: Path) -> int:
    found = _MINUTES.search(source(read(exercise)["cells"][0]))
    assert found, f"{exercise.name} does not say how long it takes"
    return int(found[2] or 60)


def wrong_answers(chapter: int) -> tuple[Mutant, ...]:
    """The mutants of a chapter's tasks."""
    return tuple(import_module(f"tests.classroom.mutants.ch{chapter:02}").MUTANTS)


def tasks_page(book: list[Unit]) -> str:
    """docs/teaching/tasks.md"""
    asked = [unit for unit in book if unit.tasks]
    whole = [f"| all | | {sum(len(u.tasks) for u in asked)} | {_points(asked)} | {_hours(asked)} |"]
    rows = [f"| {u.number:02} | {u.title} | {len(u.tasks)} | {_points([u])} | {_hours([u])} |" for u in asked]
    head = ["| | chapter | tasks | points | hours |", "|---|---|---|---|---|"]
    return "\n".join([TASKS, *head, *rows, *whole, *(line for unit in asked for line in _chapter(unit))]) + "\n"


def _chapter(unit: Unit) -> list[str]:
    listed = [f"{n}. {one.text}{_places(one)}" for n, one in enumerate(unit.objectives, 1)]
    head = ["| task | objective | points | check | wrong answers that it catches |", "|---|---|---|---|---|"]
    wrong = wrong_answers(unit.number)
    rows = [row for task in unit.tasks for row in _rows(unit, task, wrong)]
    rows += [
        f"| {question.title} ({question.possible}) | {_serves(unit, 'in words')} "
        f"| {question.possible} | a person | [rubrics.md](rubrics.md#{unit.number:02}) |"
        for question in unit.words
    ]
    return ["", f"## {unit.number:02} · {unit.title}", "", *listed, "", *head, *rows]


def _rows(unit: Unit, task: Task, wrong: tuple[Mutant, ...]) -> list[str]:
    rows = []
    for check in task.checks:
        names = "; ".join(one.name for one in wrong if (one.task, one.caught_by) == (task.id, check.name))
        first = (
            f"{task.id} {task.title} ({task.points}) | {_serves(unit, task.id)}" if check is task.checks[0] else " | "
        )
        rows.append(f"| {first} | {check.points} | {check.name} | {names or '–'} |")
    return rows


def _serves(unit: Unit, place: str) -> str:
    """The numbers of the objectives that a task asks for."""
    return ", ".join(str(n) for n, one in enumerate(unit.objectives, 1) if place in one.places) or "–"


def _places(objective: Objective) -> str:
    return f" → {', '.join(objective.places)}" if objective.places else ""


def plans() -> list[list[list[str]]]:
    """For each plan of chapter 00 the labels of the chapters of each week."""
    cells = {cell["id"]: source(cell) for cell in read(checkout.chapters()[0].path)["cells"]}
    rows = [line.strip("| ").split("|") for line in cells["course"].splitlines() if line.startswith("| week")]
    weeks = [[re.findall(r"\d\d[b-z]?", cell) for cell in row[1:]] for row in rows]
    return [[week[plan] for week in weeks if len(week) > plan and week[plan]] for plan in range(len(PLANS))]


def syllabus_page(book: list[Unit]) -> str:
    """docs/teaching/syllabus.md"""
    by_label = {unit.label: unit for unit in book}
    lines = [SYLLABUS]
    for name, plan in zip(PLANS, plans(), strict=True):
        weeks = [[by_label[label] for label in week] for week in plan]
        lines += [f"## {name}", "", "| week | chapters and exercises | hours | points |", "|---|---|---|---|"]
        lines += [f"| {n} | {_numbers(week)} | {_hours(week)} | {_points(week)} |" for n, week in enumerate(weeks, 1)]
        taken = [unit for week in weeks for unit in week]
        lines += [f"| all | | {_hours(taken)} | {_points(taken)} |", *_left_out(book, taken), ""]
        for n, week in enumerate(weeks, 1):
            lines += [f"### {name}, week {n}", "", *(_afterwards(unit) for unit in week), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _left_out(book: list[Unit], taken: list[Unit]) -> list[str]:
    rest = [unit for unit in book if unit not in taken]
    return [f"| left out | {_numbers(rest)} | {_hours(rest)} | {_points(rest)} |"] if rest else []


def _afterwards(unit: Unit) -> str:
    learnt = "; ".join(one.text for one in unit.objectives)
    exercise = f", exercise {unit.practice} min, {_points([unit])} points" if unit.tasks else ""
    return f"- **{unit.label} · {unit.title}** {unit.question} ({unit.minutes} min{exercise})\n  {learnt}."


def _numbers(week: list[Unit]) -> str:
    return ", ".join(unit.label for unit in week)


def _hours(of: list[Unit]) -> str:
    return f"{sum(unit.minutes + unit.practice for unit in of) / 60:.1f}"


def _points(of: list[Unit]) -> str:
    by_hand = sum(unit.by_hand for unit in of)
    return f"{sum(unit.points for unit in of)}" + (f" + {by_hand}" if by_hand else "")


def pages() -> dict[Path, str]:
    """Required content of each page."""
    book = units()
    return {PLACE / "tasks.md": tasks_page(book), PLACE / "syllabus.md": syllabus_page(book)}


if __name__ == "__main__":
    for path, text in pages().items():
        write_atomically(path, text.encode())

"""A class that hands in the whole book: perfect, partial, stub, hostile and broken submissions, all of other texts."""

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dpbook.classroom import list_tasks
from dpbook.core import checkout
from dpbook.ranks import all_processes, family
from tests.classroom.mutants.edits import mutants_text
from tests.classroom.sandbox.test_attacks import FORGED, LOOPS, WRONG
from tests.classroom.submissions import hand_in, solutions
from tests.classroom.test_exercises import wrong_answers

CLASS = {"perfect": 30, "partial": 40, "stub": 15, "hostile": 10, "broken": 5}
"""Of a hundred."""
CHAPTERS = sorted({task.chapter for task in list_tasks()} - {0, 90})
ATTACKS = {
    **LOOPS,
    **{name: WRONG[name] for name in ("an exit", "noise on the wire")},
    "a forged judge": f"{FORGED['judge']}\nreturn None",
}
"""What an answer does when it is called, in every task of a submission."""
Notebook = dict[str, Any]


@dataclass
class Submission:
    """``given``: what was done with each task: "right", "wrong", or nothing where it is as it was found."""

    name: str
    kind: str
    chapters: Sequence[int] = ()
    given: dict[str, str] = field(default_factory=dict)


def classroom(folder: Path, numbers: dict[str, int], chapters: Sequence[int] = CHAPTERS) -> list[Submission]:
    """Hand in so many submissions of each kind, of the exercises of these chapters, in folders of ``folder``."""
    made = []
    for kind, number in numbers.items():
        for k in range(number):
            submission = Submission(f"{kind}{k:02}", kind, chapters)
            _WRITERS[kind](folder / submission.name, submission, k)
            made.append(submission)
    return made


def _perfect(folder: Path, submission: Submission, k: int) -> None:
    _write(folder, submission, {task.id: "right" for task in _tasks(submission)})


def _partial(folder: Path, submission: Submission, k: int) -> None:
    """Half right, a quarter with a known mistake, a quarter not answered."""
    draw = random.Random(submission.name)
    given = {task.id: draw.choice(["right", "right", "wrong", ""]) for task in _tasks(submission)}
    _write(folder, submission, {task: what for task, what in given.items() if what})


def _stub(folder: Path, submission: Submission, k: int) -> None:
    _write(folder, submission, {})


def _hostile(folder: Path, submission: Submission, k: int) -> None:
    body = textwrap.indent(textwrap.dedent(list(ATTACKS.values())[k % len(ATTACKS)]), "    ")
    for chapter in submission.chapters:
        answers = {
            _number(task.id): f"def {task.answer}(*given, **options):\n{body}\n# {submission.name}"
            for task in list_tasks(chapter)
        }
        hand_in(folder / f"{chapter:02}.ipynb", chapter, answers)


def _broken(folder: Path, submission: Submission, k: int) -> None:
    change = list(_BROKEN.values())[k % len(_BROKEN)]
    _write(folder, submission, {task.id: "right" for task in _tasks(submission)}, change)


def _without_ids(nb: Notebook) -> None:
    for number, cell in enumerate(nb["cells"]):
        cell["id"], cell["metadata"] = f"cell-{number}", {}


def _doubled(nb: Notebook) -> None:
    nb["cells"] += [cell for cell in nb["cells"] if cell["id"].startswith("answer-")]


def _unfinished(nb: Notebook) -> None:
    for cell in nb["cells"]:
        if cell["id"].startswith("answer-"):
            cell["source"] = ["def unfinished(:\n", *cell["source"]]


def _old(nb: Notebook) -> None:
    nb["worksheets"] = [{"cells": nb.pop("cells")}]


_BROKEN: dict[str, Callable[[Notebook], None]] = {
    "no Python": _unfinished, "an old format": _old, "no ids": _without_ids, "cells twice": _doubled,
    "no notebook": dict.clear,
}  # fmt: skip
_WRITERS = {"perfect": _perfect, "partial": _partial, "stub": _stub, "hostile": _hostile, "broken": _broken}


def _write(
    folder: Path, submission: Submission, given: dict[str, str], change: Callable[[Notebook], None] = lambda nb: None
) -> None:
    submission.given = given
    draw = random.Random(submission.name)
    for chapter in submission.chapters:
        answers = {}
        for task in list_tasks(chapter):
            if task.id in given:
                right = given[task.id] == "right"
                text = solutions(chapter)[_number(task.id)] if right else draw.choice(_mistakes(chapter, task.id))
                answers[_number(task.id)] = f"{text}\n# {submission.name}"
        hand_in(folder / f"{chapter:02}.ipynb", chapter, answers, change=change)


@cache
def _mistakes(chapter: int, task: str) -> list[str]:
    """Answers to a task with a known mistake each."""
    text = mutants_text(chapter)
    answer = next(each.answer for each in list_tasks(chapter) if each.id == task)
    chosen = f"{answer} = next(m.answer for m in MUTANTS if (m.task, m.name) == {{!r}})"
    mutants = [mutant for mutant in wrong_answers(chapter).MUTANTS if mutant.task == task]
    return [f"{text}\n{chosen.format((mutant.task, mutant.name))}" for mutant in mutants]


def _tasks(submission: Submission) -> Iterator[Any]:
    return (task for chapter in submission.chapters for task in list_tasks(chapter))


def _number(task: str) -> str:
    return task.partition(".")[2]


@dataclass
class Run:
    """Report of ``dpbook grade --json``, seconds on the clock, the most memory of its processes in bytes, and
    those that it left."""

    marks: dict[str, Any]
    seconds: float
    memory: int
    leftover: set[int]

    @property
    def points(self) -> dict[str, dict[str, tuple[int, int]]]:
        """For each submission points and possible points by task."""
        return {
            each["name"]: {
                task["task"]: (task["points"], task["possible"])
                for exercise in each["exercises"]
                for task in exercise["tasks"]
            }
            for each in self.marks["submissions"]
        }


def graded(paths: Sequence[Path], seed: int, jobs: int, temporary: Path, every: float = 0.3) -> Run:
    """Run the command, with ``temporary`` for its temporary files; memory is looked at ``every`` so many seconds."""
    command = [sys.executable, "-m", "dpbook", "grade", *map(str, paths), f"--seed={seed}", f"--jobs={jobs}", "--json"]
    begun, memory, seen = time.monotonic(), 0, set[int]()
    with open(temporary / "marks.json", "w+") as file:
        run = subprocess.Popen(
            command,
            stdout=file,
            env={**os.environ, "TMPDIR": str(temporary)},
            cwd=checkout.root(),
            start_new_session=True,
        )
        while run.poll() is None:
            found = family(run.pid, all_processes())
            seen |= found.keys()
            memory = max(memory, sum(map(_own_share, found)))
            time.sleep(every)
        file.seek(0)
        return Run(json.load(file), time.monotonic() - begun, memory, seen & set(all_processes()))


def _own_share(process: int) -> int:
    """Bytes of memory that a process holds; of what it shares with others, its share."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)

"""Marks as self-contained HTML pages: one for each learner, and one of the class for the instructor."""

import io
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dpbook.classroom.gradebook.gradebook import CANVAS_NAME, MOODLE_NAME, sort_key
from dpbook.classroom.gradebook.words import code
from dpbook.classroom.marks import Marks, SubmissionMarks, TaskMarks, find_similar
from dpbook.classroom.tasks.report import one_line
from dpbook.core import palette, render_page, write_atomically

CLASS = "class.html"


def write(marks: Marks, folder: Path) -> list[Path]:
    """Write a page for each submission into ``folder`` and, of several, one of the class; returns their paths."""
    files = [_file(each, number) for number, each in enumerate(marks.submissions, 1)]
    pages = {name: learner(each, marks.seed) for name, each in zip(files, marks.submissions, strict=True)}
    if len(files) > 1:
        pages[CLASS] = whole_class(marks, files)
    for name, page in pages.items():
        write_atomically(folder / name, page.encode("utf-8", "replace"))
    return [folder / name for name in pages]


def to_return(marks: Marks) -> bytes:
    """Return a zip with the page of each submission, under the name by which Canvas or Moodle gives it back.

    Canvas takes files with the names under which it handed out the submissions (the ending does not matter), Moodle
    the folders that it handed out. Other pages have the names that `write` gives them.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, one in enumerate(marks.submissions, 1):
            name = f"{one.name}.html" if CANVAS_NAME.match(one.name) else _file(one, number)
            name = f"{one.name}/marks.html" if MOODLE_NAME.match(one.name) else name
            archive.writestr(name, learner(one, marks.seed).encode("utf-8", "replace"))
    return content.getvalue()


def _file(submission: SubmissionMarks, number: int) -> str:
    """Return the name of a submission's page, which any system can store."""
    plain = re.sub(r"[^\w]+", "-", submission.name)[:40].strip("-") or "submission"
    return f"{number:03}-{plain}.html"


def learner(submission: SubmissionMarks, seed: int) -> str:
    """Return a learner's page: the expected and the returned value of each task, and why they matter."""
    return render_page("marks.html", submission=submission, code=code(submission.name, seed), palette=palette)


def whole_class(marks: Marks, files: list[str]) -> str:
    """Return the page of the class: points of all learners with links to their pages, and tasks, hardest first."""
    rows = [
        (one, file, {each.chapter: each for each in one.exercises})
        for one, file in sorted(zip(marks.submissions, files, strict=True), key=lambda pair: sort_key(pair[0].name))
    ]
    results: dict[str, _TaskResults] = {}
    for one, file, _ in rows:
        for task in one.tasks:
            results.setdefault(task.task, _TaskResults(task.task, task.title, task.possible)).add(task, one.name, file)
    return render_page(
        CLASS,
        palette=palette,
        marks=marks,
        rows=rows,
        chapters=sorted({chapter for _, _, exercises in rows for chapter in exercises if chapter is not None}),
        remarks=[remark for one, _, _ in rows for remark in _remarks(one, marks)],
        alike=find_similar(marks),
        tasks=sorted(results.values(), key=lambda each: (each.share, each.task)),
    )


def _remarks(submission: SubmissionMarks, marks: Marks) -> Iterator[tuple[str, str, str]]:
    """Yield the submission's name, a file or task of it, and a remark on it."""
    name = submission.name
    composed = unicodedata.normalize("NFC", name)
    if any(one.name != name and unicodedata.normalize("NFC", one.name) == composed for one in marks.submissions):
        yield name, "", "another submission has this name, spelled with other characters that look the same"
    yield from ((name, "", remark) for remark in submission.remarks)
    for exercise in submission.exercises:
        yield from ((name, exercise.file, remark) for remark in exercise.remarks)
        for task in exercise.tasks:
            yield from ((name, task.task, remark) for remark in (*task.remarks, *_stopped(task)))


STOPPED = {
    "it tried a forbidden operation, or ended its process":
        ("PermissionError", "Operation not permitted", "its process ended before"),
    "it is not valid Python": ("SyntaxError", "IndentationError", "TabError"),
}  # fmt: skip
"""Remarks on answers that were stopped, each with texts that identify it in a case's result."""


def _stopped(task: TaskMarks) -> Iterator[str]:
    """Yield a remark on each answer that no check could judge, or that tried a forbidden operation."""
    for remark, parts in STOPPED.items():
        found = next((case.got for case in task.cases if any(part in case.got for part in parts)), None)
        if found is not None:
            yield f"{remark}: {one_line(found)}"


@dataclass
class _TaskResults:
    """The results of a task in all submissions with its exercise.

    ``missed`` counts the checks that failed; ``missed_by`` are names and pages of the learners who have lost points.
    """

    task: str
    title: str
    possible: int
    points: list[int] = field(default_factory=list)
    answered: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    missed_by: list[tuple[str, str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        return sum(self.points) / len(self.points) / self.possible if self.possible else 1.0

    def add(self, marks: TaskMarks, name: str, file: str) -> None:
        self.points.append(marks.points)
        if marks.points < self.possible:
            self.missed_by.append((name, file))
        if marks.report and marks.report.answered:
            self.answered += 1
            self.missed.update(case.name for case in marks.cases if not case.passed)

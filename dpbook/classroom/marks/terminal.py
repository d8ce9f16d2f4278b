"""Marks as text for a terminal: a table for each submission, and one of the class."""

from collections.abc import Iterator

from dpbook.classroom.marks.marks import ExerciseMarks, Marks, SubmissionMarks
from dpbook.classroom.tasks.text import one_line
from dpbook.core import plural

WIDTH = 110


def table(marks: Marks) -> str:
    """All of ``marks``; of a class a summary, last."""
    lines = [line for submission in marks.submissions for line in _submission(submission)]
    if len(marks.submissions) > 1:
        lines += list(_class(marks))
    together = sorted({t.task for s in marks.submissions for e in s.exercises for t in e.tasks if t.together})
    if together:
        lines.append(f"judged together with the answer, whose process reported part of it: {', '.join(together)}")
    lines += [f"not contained: {each}" for each in marks.not_contained]
    course = "" if marks.course is None else f", course {marks.course}"
    return "\n".join([*lines, f"seed {marks.seed}{course}"])


def _submission(submission: SubmissionMarks) -> Iterator[str]:
    yield f"{_shown(submission.name)}: {submission.points} of {plural(submission.possible, 'point')}"
    yield from _remarks(submission.remarks, "  ")
    for exercise in submission.exercises:
        yield from _exercise(exercise)
    yield ""


def _exercise(exercise: ExerciseMarks) -> Iterator[str]:
    yield f"  {_shown(exercise.file)}: {exercise.points} of {exercise.possible}"
    yield from _remarks(exercise.remarks, "    ")
    for task in exercise.tasks:
        reason = one_line(task.reason, WIDTH)
        yield f"    {task.task:6}{task.points:3} of {task.possible:2}  {task.title}" + (
            f" – {reason}" if reason else ""
        )
        yield from _remarks([remark for remark in task.remarks if remark != task.reason], " " * 18)
    if exercise.in_words:
        yield f"    and up to {exercise.in_words} for an argument in words, which a person gives"


def _class(marks: Marks) -> Iterator[str]:
    names = [_shown(submission.name) for submission in marks.submissions]
    width = max(map(len, names))
    yield "class"
    for name, submission in zip(names, marks.submissions, strict=True):
        files = [exercise for exercise in submission.exercises if exercise.chapter is None]
        left = f"  {plural(len(files), 'file')} not graded" if files else ""
        left = left if submission.exercises else "  no notebook"
        yield f"  {name:{width}}{submission.points:5} of {submission.possible:3}{left}"
    yield ""


def _remarks(remarks: object, indent: str) -> Iterator[str]:
    assert isinstance(remarks, tuple | list)
    yield from (f"{indent}! {one_line(remark, 2 * WIDTH)}" for remark in remarks)


def _shown(name: str) -> str:
    return one_line(name.encode("utf-8", "replace").decode(), 60)

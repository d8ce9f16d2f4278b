"""Stand-ins for answers whose cells have not been run, so that a check can say so in place of a NameError."""

from typing import Any, NoReturn

from dpbook.classroom.tasks.load_tasks import list_tasks
from dpbook.classroom.tasks.numbers import begin_course
from dpbook.core import DpbookError

RUN_FIRST = "run the cell with your answer first"


class NotRun:
    """What an answer's name stands for until its cell has been run. Using it raises `DpbookError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"{self._name} is not there yet: {RUN_FIRST}"

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise DpbookError(repr(self))

    __call__ = __getitem__ = __iter__ = _refuse


def exercise(chapter: int, names: dict[str, Any], *, course: int | None = None) -> None:
    """Begin the exercise of a chapter: put a `NotRun` into ``names`` for each answer that is not there yet.

    ``names`` are the notebook's ``globals()``. To run this again leaves answers as they are. ``course`` is the seed of
    the course with whose numbers the exercise was written, if not with the book's.
    """
    begin_course(course)
    for task in list_tasks(chapter):
        names.setdefault(task.answer, NotRun(task.answer))

"""Hints that open one at a time."""

from dataclasses import dataclass

from dpbook.classroom.tasks.definition import Task
from dpbook.classroom.tasks.load_tasks import task
from dpbook.classroom.tasks.report_html import marked
from dpbook.core import plural

_opened: dict[str, int] = {}  # by task; lasts as long as the kernel


@dataclass(frozen=True)
class Hints:
    """The hints of a task that are open."""

    task: Task
    opened: int

    @property
    def headline(self) -> str:
        """What is open and what is left, in one line."""
        if not self.task.hints:
            return f"Task {self.task.id} has no hints."
        left = len(self.task.hints) - self.opened
        more = f'{left} left, hint("{self.task.id}") opens the next' if left else "these are all"
        return f"Task {self.task.id}, {plural(self.opened, 'hint')} of {len(self.task.hints)} opened: {more}."

    def __repr__(self) -> str:
        shown = self.task.hints[: self.opened]
        return "\n".join([self.headline, *(f"  {number}. {text}" for number, text in enumerate(shown, start=1))])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{marked(text)}</li>" for text in self.task.hints[: self.opened])
        return f"<div><p>{marked(self.headline)}</p><ol>{items}</ol></div>"


def hint(task_id: str) -> Hints:
    """Open the next hint of a task and return all that are open. Raises `InvalidArgument` for an unknown task."""
    found = task(task_id)
    _opened[task_id] = min(_opened.get(task_id, 0) + 1, len(found.hints))
    return Hints(found, _opened[task_id])

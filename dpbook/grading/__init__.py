"""Graded tasks: judged at once in the notebook, by the values that an answer yields.

How to write a task
-------------------
A task is a `Task` in the tuple ``TASKS`` of ``dpbook/grading/tasks/chNN``: what the learner's name is called, and a
list of `Check`, each with its points and the reason why it matters. A check is an ordinary function; it draws instances
from ``rng``, asks for values, and compares them with its own reference::

    from dpbook.grading import Check, Task, call, expect_close

    def mean_of_gradients(answer, rng):
        for world in (1, 2, 5, 7, 16):
            gradients = rng.normal(size=(world, 10))
            got = call(answer, gradients, unchanged=True)
            expect_close(gradients.mean(axis=0), got, bound=1e-12, where=f"world {world}")

    TASKS = (
        Task(
            id="01.1",
            title="Average the gradients",
            answer="average",
            checks=[Check("the mean over ranks", 2, "A sum is a step of N times the size.", mean_of_gradients)],
            hints=["Which axis is the rank?"],
        ),
    )

The values are plain data (numbers, lists, tuples, dicts, base arrays, `Schedule`), so nothing of the learner's runs in
a comparison. Errors, loops, wrong types and stubs are dealt with in `call`; a check need not think of them. A task that
asks for a number reads it with ``value(answer)``. ``call(answer, 4, 10, through=f)`` calls ``f(answer, 4, 10)`` behind
the guard: for rank programs, classes, and arguments changed in place. A check may return a note to show, as
`expect_at_most` does.

Every task has a reference (in ``exercises/solutions/NN_name.ipynb``, see `notebooks` and `structure`) and three to six
wrong answers in ``tests/grading/mutants/chNN.py``, see `mutants`.
"""

from dpbook.grading.answer import Answer, LocalAnswer, Wrong, call, value
from dpbook.grading.cases import Case, Report
from dpbook.grading.check import check, judge
from dpbook.grading.expect import expect, expect_at_most, expect_close, expect_equal, expect_schedule
from dpbook.grading.hints import Hints, hint
from dpbook.grading.progress import Progress, progress
from dpbook.grading.task import Check, Task, register, task, tasks

__all__ = [
    "Answer",
    "Case",
    "Check",
    "Hints",
    "LocalAnswer",
    "Progress",
    "Report",
    "Task",
    "Wrong",
    "call",
    "check",
    "expect",
    "expect_at_most",
    "expect_close",
    "expect_equal",
    "expect_schedule",
    "hint",
    "judge",
    "progress",
    "register",
    "task",
    "tasks",
    "value",
]

"""Graded tasks: judged at once in the notebook, by the values that an answer yields.

How to write a task
-------------------
A task is declared in the ``tasks.toml`` of its chapter: what the learner's name is called, hints, and checks, each with
its points and the reason why it matters. Keys are the fields of `Task` and `Check`::

    [[task]]
    id = "01.1"
    title = "Average the gradients"
    answer = "average"
    hints = ["Which axis is the rank?"]

    [[task.check]]
    name = "the mean over ranks"
    points = 2
    why = "A sum is a step of N times the size."
    run = "mean_of_gradients"
    seconds = 60  # only where the answer needs more than the usual 5

``run`` names a function in ``checks.py`` beside it, which draws instances from ``rng``, asks for values, and compares
them with its own reference. Checks that differ in a number are made by one function, and each has its name there::

    def mean_of_gradients(answer, rng):
        for world in (1, 2, 5, 7, 16):
            gradients = rng.normal(size=(world, 10))
            got = call(answer, gradients, unchanged=True)
            expect_close(gradients.mean(axis=0), got, bound=1e-12, where=f"world {world}")

    one_step, many_steps = estimates(1), estimates(12)

The values are plain data (numbers, lists, tuples, dicts, base arrays, `Schedule`), so nothing of the learner's runs in
a comparison. Errors, loops, wrong types and stubs are dealt with in `call`; a check need not think of them. A task that
asks for a number reads it with ``value(answer)``. ``call(answer, 4, 10, through=f)`` calls ``f(answer, 4, 10)`` behind
the guard: for rank programs, classes, and arguments changed in place. A check may return a note to show, as
`expect_at_most` does.

Every task has a reference (in ``exercises/solutions/NN_name.ipynb``, see `notebooks` and `structure`) and three to six
wrong answers in ``tests/grading/mutants/chNN.py``, see `mutants`.
"""

from dpbook.grading.answer import Answer, LocalAnswer, NotAnswered, Through, Wrong, call, value
from dpbook.grading.cases import Case, Report
from dpbook.grading.declared import register, task, tasks
from dpbook.grading.definition import Check, Task
from dpbook.grading.expectations import (
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
    expect_schedule,
)
from dpbook.grading.hints import Hints, hint
from dpbook.grading.judging import check, judge
from dpbook.grading.progress_file import Progress, progress
from dpbook.grading.text import describe

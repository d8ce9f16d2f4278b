"""The task on which chapter 00 shows how checking works."""

from __future__ import annotations

import numpy as np

from dpbook.grading import Answer, Check, Task, call, expect_equal


def _sum(answer: Answer, rng: np.random.Generator) -> None:
    for world in (1, 2, 5):
        buffers = rng.integers(-9, 10, world).tolist()
        expect_equal(sum(buffers), call(answer, buffers), where=f"world {world}, buffers {buffers}")


TASKS = (
    Task(
        id="00.1",
        title="Sum over the ranks",
        answer="total",
        checks=[Check("sum", 1, "A rank that is left out does not take part in training.", _sum)],
        hints=["Python has a function for this.", "`sum(buffers)`"],
    ),
)

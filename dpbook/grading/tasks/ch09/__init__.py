"""Exercise 09: a mean made of messages, the groups of a grid, and the rank at fault."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch09.checks import (
    START_SECONDS,
    any_world,
    groups_of_a_grid,
    processes,
    what_is_wrong,
    where_it_differs,
)
from dpbook.grading.tasks.ch09.logs import mistakes

__all__ = ["TASKS", "mistakes"]

TASKS = (
    Task(
        id="09.1",
        title="A mean made of messages",
        answer="all_reduce_mean",
        checks=[
            Check(
                "any world, in one process",
                1,
                "A circle in which everyone sends first waits for ever; an undivided sum makes a step N times as long.",
                any_world,
            ),
            Check(
                "three processes",
                1,
                "Ranks share nothing but messages: what one process lets pass, several do not.",
                processes,
                seconds=START_SECONDS,
            ),
        ],
        hints=[
            "Begin with the ring of the chapter. Each `sendrecv` becomes a `send` and a `recv`; in which order?",
            "It is enough that one rank receives before it sends: its neighbour can send then, and so on.",
            "If odd ranks receive first, and even ones send first, all pairs work at the same time; in an odd world "
            "two even ranks are neighbours, and one of them waits a little.",
        ],
    ),
    Task(
        id="09.2",
        title="The groups of a grid",
        answer="groups",
        checks=[
            Check(
                "rows and columns",
                1,
                "Gradients that are averaged over the wrong ranks belong to other parameters.",
                groups_of_a_grid,
            ),
        ],
        hints=[
            "Write the ranks row by row, `cut` in each row. What is a copy of the model, and who holds the same piece?",
            "The ranks of a column lie `cut` apart.",
        ],
    ),
    Task(
        id="09.3",
        title="The rank at fault",
        answer="first_fault",
        checks=[
            Check(
                "which rank, which call",
                1,
                "The rank that complains is not the one to blame: only a comparison of all ranks tells.",
                where_it_differs,
            ),
            Check(
                "what is wrong", 1, "A skipped call and a wrong shape are mended in different places.", what_is_wrong
            ),
        ],
        hints=[
            "Two ranks may make the same call from different lines. What of a call must agree?",
            "Which log do most ranks have? `max(logs, key=logs.count)`. Where does the odd one out leave it?",
            "A log that is shorter has skipped a call. If it is as long, compare the next two calls crosswise before "
            "you look for the field that differs.",
        ],
    ),
)

"""Exercise 11: from a script to ranks, bytes on the wire, and who sits where."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch11.checks import ALONE_SECONDS, START_SECONDS, alone, bytes_sent, places, processes

__all__ = ["TASKS"]

TASKS = (
    Task(
        id="11.1",
        title="From a script to ranks",
        answer="train",
        checks=[
            Check(
                "one rank: the script as it was",
                1,
                "A loop that trains otherwise on one rank is no data-parallel version of the script, but another one.",
                alone,
                seconds=ALONE_SECONDS,
            ),
            Check(
                "three real processes",
                1,
                "What differs between ranks shows here: who reads what, who writes, and whose loss is logged.",
                processes,
                seconds=START_SECONDS,
            ),
        ],
        hints=[
            "Go through the table of the chapter row by row: which rows does this script need?",
            "The sampler shuffles now, so the loader must not. Whom must the epoch be told?",
            "The last micro-batch of a step syncs, the others do not: `contextlib.nullcontext()` is a context that "
            "does nothing. Forward belongs inside it too.",
            "Add up the losses of the step on every rank, then sum over the ranks and divide by their number. All "
            "ranks take part in a collective, whoever keeps the result.",
            "DDP keeps your model in `.module`.",
        ],
    ),
    Task(
        id="11.2",
        title="Bytes on the wire",
        answer="prediction",
        checks=[
            Check(
                "six numbers",
                1,
                "Who knows the bytes before a run sees in its first step that a setting does not do what it should.",
                bytes_sent,
            )
        ],
        hints=[
            "Gradients have the dtype of the parameters. Which of the settings changes that?",
            "An adapter on a layer of (outputs, inputs) has the shapes (r, inputs) and (outputs, r).",
            "Without `no_sync` every micro-batch sends all gradients. A ring of N sends 2(N − 1)/N of the payload.",
        ],
    ),
    Task(
        id="11.3",
        title="Who sits where",
        answer="place",
        checks=[
            Check(
                "nodes of different sizes",
                1,
                "One number confused with another works on a single node, and fails on the first run on two.",
                places,
            )
        ],
        hints=[
            "How many processes do the nodes before this one have? Nodes may differ.",
            "CUDA numbers the GPUs that a process sees from 0, in the order in which they are listed.",
        ],
    ),
)

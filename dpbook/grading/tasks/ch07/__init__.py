"""Exercise 07: exposed time, the tokens that hide a sync, and what is wrong with a step."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch07.checks import any_size, diagnoses, exposes, many_ranks
from dpbook.grading.tasks.ch07.steps import FAULTS, sample

__all__ = ["FAULTS", "TASKS", "sample"]

TASKS = (
    Task(
        id="07.1",
        title="Measure exposed time",
        answer="exposed",
        checks=[
            Check(
                "unions, not sums",
                1,
                "It is the most that better overlap can save. Spans that run at once count once, or you promise more.",
                exposes,
            )
        ],
        hints=[
            "Make a set of moments of all communication, and one of all computation, before you compare them.",
            "Between two neighbouring starts or ends of any spans nothing changes. Look at each such piece.",
            "A piece counts in full if some communication covers it and no computation does.",
        ],
    ),
    Task(
        id="07.2",
        title="Tokens to hide",
        answer="tokens_to_hide",
        checks=[
            Check(
                "2 bytes, many ranks",
                1,
                "It is F/B for every model: tokens per GPU decide whether communication hides, not parameters.",
                many_ranks,
            ),
            Check(
                "any element and world",
                1,
                "Under autocast gradients have 4 bytes; and two GPUs in a workstation send half of what many do.",
                any_size,
            ),
        ],
        hints=[
            "Write down the seconds of backward for T tokens, and the seconds of the ring. Set them equal.",
            "Each rank of a ring sends 2(N − 1)/N of the buffer, and the buffer has itemsize · P bytes.",
            "T = 2(N − 1)/N · itemsize · F / (4 · B). Where has P gone?",
        ],
    ),
    Task(
        id="07.3",
        title="What is wrong with this step?",
        answer="diagnose",
        checks=[
            Check(
                "where the messages lie",
                1,
                "A hook that waits needs another hook, a giant bucket another cut; both look like a slow network.",
                diagnoses("healthy", "blocking hook", "giant bucket"),
            ),
            Check(
                "what lies around them",
                1,
                "No network, however fast, repairs a slow rank, a slow CPU or messages that need not be sent.",
                diagnoses("healthy", "launch-bound", "straggler", "extra syncs"),
            ),
        ],
        hints=[
            "Begin with what can be told from one number: is there more launching than computation?",
            "Compare the computation of the ranks, not of one rank over time: the straggler may be any of them.",
            "If every micro-batch is sent, a message begins before the last forward does.",
            "Two remain: is anything hidden at all? How long is the longest message, beside all of them together?",
        ],
    ),
)

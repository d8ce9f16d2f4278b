"""Exercise 12: where the time of a step goes, a table of scaling, and bandwidths as nccl-tests defines them."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch12.checks import bandwidths_agree, lost_time, rows_agree, verdicts

__all__ = ["TASKS"]

TASKS = (
    Task(
        id="12.1",
        title="Where does the time go?",
        answer="diagnose",
        checks=[
            Check(
                "the three losses of every rank",
                1,
                "A profiler draws waiting and transfer as one span: who reads it so buys a network for a slow rank.",
                lost_time,
            ),
            Check(
                "the cause, and where to look",
                1,
                "The rank whose profile looks worst is the one that waits. Nothing on it can be repaired.",
                verdicts,
            ),
        ],
        hints=[
            "Cut the window at every start and end of any span: between two neighbouring cuts nothing changes.",
            "The n-th collective of a rank is the n-th by its start, whatever its lane. Bytes move from the latest of "
            "the ranks' n-th starts on.",
            "A piece without computation is transfer if some collective of this rank has all ranks in it, else waiting "
            "if the rank is in any collective, else idle.",
            "Add each of the three up over the ranks; the largest is the cause. Of a straggler, the rank to look at is "
            "the one that waits least.",
        ],
    ),
    Task(
        id="12.2",
        title="A table of scaling",
        answer="scaling",
        checks=[
            Check(
                "tokens per second, efficiency, MFU",
                1,
                "A step that stays as long is full efficiency in weak scaling and half of it in strong scaling on two.",
                rows_agree,
            ),
        ],
        hints=[
            "Tokens per second are those of all ranks: a step reads `tokens`, and takes `seconds`.",
            "Efficiency compares tokens per second *per rank* with those of the run on the fewest ranks, which need "
            "neither come first nor be one.",
            "MFU: 6 operations per parameter and token; all ranks together have `ranks` times the peak.",
        ],
    ),
    Task(
        id="12.3",
        title="Bandwidths as nccl-tests counts",
        answer="bandwidths",
        checks=[
            Check(
                "size and factor of each collective",
                1,
                "A factor of N too little or too much looks like a broken network, or hides one.",
                bandwidths_agree,
            ),
        ],
        hints=[
            "Size first. Which buffer is the larger one, what a rank hands in or what it gets? That one is the size.",
            "An all-gather's ranks hand in an N-th each; in a reduce-scatter each hands in the whole buffer.",
            "Then the factor: 2(N − 1)/N, (N − 1)/N or 1.",
        ],
    ),
)

"""Exercise 08: the rule of the buckets, a slider that does nothing, and buckets that beat every cap."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch08.checks import PAR, below_caps, fills, simple, slides
from dpbook.grading.tasks.ch08.models import Model, sample, simulate

__all__ = ["TASKS", "Model", "sample", "simulate"]

TASKS = (
    Task(
        id="08.1",
        title="Fill the buckets",
        answer="fill",
        checks=[
            Check(
                "one dtype",
                1,
                "Ranks that cut their gradients differently all-reduce different things under one call.",
                fills("float32"),
            ),
            Check(
                "several dtypes",
                1,
                "A buffer has one dtype: norms in fp32 cannot travel in a bucket of bf16.",
                fills("float32", "bfloat16", "float64"),
            ),
        ],
        hints=[
            "A gradient goes into the open bucket first; only then ask whether the bucket has reached its limit.",
            "How many buckets of this dtype have closed so far? If none has, the limit is `first`, else `cap`.",
            "Keep the open buckets in a dict by dtype. Take a bucket out with `pop` and put it back at the end: "
            "then what is left over is sorted by its last gradient.",
        ],
    ),
    Task(
        id="08.2",
        title="The slider that does nothing",
        answer="next_cap",
        checks=[
            Check(
                "the next cap that matters",
                1,
                "A sweep over caps between two such values measures the same step again and again.",
                slides,
            )
        ],
        hints=[
            "Cut [5, 2, 3, 1, 2] at caps of 1, 2, 3, … on paper. At which does anything move, and which bucket is it?",
            "A bucket that closed with 5 bytes closes at the same place at every cap up to 5.",
            "A bucket after which no gradient comes cannot take in another one, whatever the cap.",
        ],
    ),
    Task(
        id="08.3",
        title="Beat every cap",
        answer="cut",
        checks=[
            Check(
                "no worse than one call each, or one for all",
                1,
                "A bucket that goes out before it is full, or behind one that is not, holds up everything after it.",
                simple,
            ),
            Check(
                "no worse than the best cap",
                1,
                "Exposed time is what all the GPUs of the job spend waiting, in every step.",
                below_caps(1.0),
            ),
            Check(
                "better than any cap",
                1,
                "A cap makes all buckets alike, though the first, the last and those between have different work.",
                below_caps(PAR),
            ),
        ],
        hints=[
            "Sort the gradients by `ready`. A message starts at max(last gradient of its bucket, end of the message "
            "before it) and takes alpha + beta · bytes.",
            "It is enough to look at buckets of neighbours in ready order. What remains is where to cut.",
            "Suppose you know, for every m < n, the earliest moment at which the first m gradients can have arrived. "
            "When can the first n have, if the last bucket holds those from m on? Try all m.",
            "Remember the best m for each n, and walk back from the last gradient to find the groups.",
        ],
    ),
)

"""Exercise 01: the average, the step, the two meters, the arithmetic."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch01.checks import (
    MISTAKES,
    any_pair,
    arithmetic,
    big_batch,
    identical,
    largest_gap,
    no_drift,
    own_shard,
    predicts,
    shown_by,
)

TASKS = (
    Task(
        id="01.1",
        title="Predict the average",
        answer="prediction",
        checks=[
            Check("three and three", 1, "With equal shards the average is the big batch's gradient.", predicts(0, 3)),
            Check(
                "two and four", 1, "With unequal shards it is not: the smaller shard weighs too much.", predicts(1, 2)
            ),
        ],
        hints=[
            "At w = 0 the derivative of one example is 2(0 − 3x)·x.",
            "Take the mean of each shard first, then the mean of the two.",
        ],
    ),
    Task(
        id="01.2",
        title="Write the step",
        answer="step",
        checks=[
            Check("the big batch's step", 1, "All ranks together must do what one would do alone.", big_batch),
            Check("identical replicas", 1, "Replicas that differ in one bit drift apart for ever.", identical),
            Check("own shard, own parameters", 1, "A rank can see only what lies in its own memory.", own_shard),
        ],
        hints=[
            "`np.split(x, world)` gives the shards.",
            "Call `gradient` once per rank, with `params[rank]` and that rank's shard.",
            "The average is the mean over ranks; every rank subtracts `lr` times the same average.",
        ],
    ),
    Task(
        id="01.3",
        title="Two meters",
        answer="meters",
        checks=[
            Check("no drift", 1, "Exactly 0, not nearly: the replicas do the same arithmetic.", no_drift),
            Check("any two replicas", 1, "The two that are furthest apart need not include rank 0.", any_pair),
            Check(
                "the largest gap", 1, "One wrong rank, or one wrong parameter, must not be averaged away.", largest_gap
            ),
        ],
        hints=[
            "For one parameter, the largest difference between any two replicas is its maximum minus its minimum.",
            "The gap compares every rank's average with the whole batch's gradient: `averaged - whole` broadcasts.",
        ],
    ),
    Task(
        id="01.4",
        title="What another worker changes",
        answer="plan",
        checks=[
            Check(
                "global batch",
                1,
                "The optimizer sees the global batch, not the local one.",
                arithmetic(0, "global batch"),
            ),
            Check("steps", 1, "Fewer steps per epoch is what the extra workers buy.", arithmetic(1, "steps")),
            Check("memory", 1, "Data parallelism does not make a large model fit.", arithmetic(2, "numbers held")),
        ],
        hints=[
            "b_global = K · b_local, and a step uses one global batch.",
            "Does a rank hold less when there are more?",
        ],
    ),
    Task(
        id="01.5",
        title="Which meter shows it?",
        answer="shows",
        checks=[
            Check(
                "replicas equal",
                1,
                "Equal replicas prove that all ranks got the same sum, not that it was the right one.",
                shown_by(list(MISTAKES)[:2] + list(MISTAKES)[3:4]),
            ),
            Check(
                "replicas apart",
                1,
                "Once replicas differ, their gradients are taken at different places, and both meters move.",
                shown_by(["one rank misses the exchange", "one rank starts from other parameters"]),
            ),
        ],
        hints=[
            "Drift moves only if some rank applies another update, or starts elsewhere.",
            "Without the division all ranks take the same step. Is it the right one?",
            "A rank at other parameters contributes a gradient taken there.",
        ],
    ),
)

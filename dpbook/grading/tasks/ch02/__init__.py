"""Exercise 02: drift without a bug, orders of addition, tokens, batch normalisation over all ranks."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch02.checks import (
    backward,
    drifts,
    empty_rank,
    forward,
    right_sum,
    smallest_world,
    the_ways,
    unequal_tokens,
)

TASKS = (
    Task(
        id="02.1",
        title="Drift without a bug",
        answer="all_reduce",
        checks=[
            Check("the right sum", 1, "Every contribution once on every rank, and no error but rounding.", right_sum),
            Check("and yet it drifts", 1, "Right on every rank is not the same as equal on all ranks.", drifts),
        ],
        hints=[
            "Addition commutes but does not associate: let the ranks put their parentheses in different places.",
            "Let rank r begin with its own buffer and go round the circle: r, r + 1, …, back to r − 1.",
            "`np.roll(buffers, -1, axis=0)[r]` is the buffer of rank r + 1.",
        ],
    ),
    Task(
        id="02.2",
        title="Which ways keep replicas equal?",
        answer="prediction",
        checks=[
            Check("the ways", 1, "Same additions, same bits: whether they are done once or on every rank.", the_ways),
            Check("the smallest world", 1, "A test on two ranks cannot see this drift.", smallest_world),
        ],
        hints=[
            "Write down the sum with its parentheses on rank 0 and on rank 1. Then use a + b = b + a.",
            "On two ranks there is one addition. How many are needed for two ways to put the parentheses?",
        ],
    ),
    Task(
        id="02.3",
        title="A mean over tokens",
        answer="average",
        checks=[
            Check("unequal tokens", 1, "Every token must count alike, on whichever rank it is.", unequal_tokens),
            Check("a rank without tokens", 1, "One NaN on one rank is NaN on all after the sum.", empty_rank),
        ],
        hints=[
            "A rank's mean times its number of tokens is its sum.",
            "Weight first, then sum: after the sum the ranks' parts cannot be told apart.",
            "0 times NaN is NaN. A rank without tokens has to contribute zeros.",
        ],
    ),
    Task(
        id="02.4",
        title="Batch normalisation over all ranks",
        answer="batch_norm",
        checks=[
            Check("forward", 1, "Statistics of eight examples are noisy, and other ones on every rank.", forward),
            Check("backward", 1, "Every example moves the mean and the variance of all, on other ranks too.", backward),
        ],
        hints=[
            "The mean of the batch is a sum over ranks divided by a number of examples summed over ranks: yield both.",
            "The mean of the ranks' variances is not the variance: it forgets how far the ranks' means are apart.",
            "`slopes.mean()` and `(slopes * y).mean()` of the backward pass are means over the batch too.",
        ],
    ),
)

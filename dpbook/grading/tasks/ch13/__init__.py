"""Exercise 13: the stage that fits, the size of a cluster, walls predicted, and the groups of a rank."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch13.checks import constrained, fits, grouped, predicts, timed

TASKS = (
    Task(
        id="13.1",
        title="Which stage fits?",
        answer="first_stage",
        checks=[
            Check(
                "the first stage that fits",
                1,
                "A stage too low runs out of memory in the first step; stage 3 without need sends half as much again.",
                fits,
            )
        ],
        hints=[
            "A rank keeps weights, gradients, optimizer state and activations. Which stage divides which by the world?",
            "Frozen parameters have weights, and nothing else: `parameters` for the weights, `trained` for the rest.",
            "Each rank has activations of its own: no stage divides them.",
        ],
    ),
    Task(
        id="13.2",
        title="Size a cluster",
        answer="fewest_gpus",
        checks=[
            Check(
                "in time, and in memory",
                1,
                "Computation alone promises a date that the sync then misses, and what does not fit never begins.",
                timed,
            ),
            Check(
                "whole sequences, and efficient",
                1,
                "A size that cuts sequences cannot run, and one beyond the wall is paid for and waits.",
                constrained,
            ),
        ],
        hints=[
            "Write a function that says of one size whether it will do, and try the sizes in ascending order.",
            "A step takes forward + max(backward, ring): 2, 4 operations per parameter and token of this GPU, and "
            "2(N − 1)/N · 2P/B seconds.",
            "Memory is 4 bytes per parameter and 12/N. Efficiency is (forward + backward) / step, and it falls with N.",
        ],
    ),
    Task(
        id="13.3",
        title="Predict the wall",
        answer="walls",
        checks=[
            Check(
                "four walls",
                1,
                "Whoever scales the wall with the model, or not with the GPU's speed, buys GPUs that wait.",
                predicts,
            )
        ],
        hints=[
            "How many tokens has the batch? At the wall backward takes as long as the ring.",
            "For the preset N − 1 = D · B / F. Put in what changes, and nothing else.",
            "fp32 gradients have twice the bytes and the computation is as it was. P is in neither side of it.",
        ],
    ),
    Task(
        id="13.4",
        title="Whose group?",
        answer="group",
        checks=[
            Check(
                "any mesh, any rank",
                1,
                "Averaged in another group, gradients of different parameters are mixed, and nothing raises an error.",
                grouped,
            )
        ],
        hints=[
            "Write the ranks of the chapter's mesh in order, with their coordinates. What is the step within `dp`?",
            "Neighbours in a dimension are as far apart as the product of the sizes after it, its stride.",
            "`rank // stride % size` is the rank's coordinate. Go back to the group's first rank; take `size` strides.",
        ],
    ),
)

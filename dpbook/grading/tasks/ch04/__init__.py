"""Exercise 04: four factors, the leftover, the noise scale, a warm-up."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch04.checks import carried, estimates, first_step, means, predicts, rises, whole
from dpbook.replicas import SGD, Adam, Momentum

TASKS = (
    Task(
        id="04.1",
        title="Predict four factors",
        answer="prediction",
        checks=[
            Check(
                "the leftover",
                1,
                "A buffer that is not empty at an epoch's end enlarges the next epoch's first update.",
                predicts(slice(0, 1), lambda: [carried()], "leftover"),
            ),
            Check(
                "three optimizers",
                1,
                "Which optimizer you tune with decides whether the loss shows a missing division.",
                predicts(
                    slice(1, 4), lambda: [first_step(make) for make in (SGD, Momentum, Adam)], "SGD, momentum, Adam"
                ),
            ),
        ],
        hints=[
            "How many micro-batches has each rank after padding, and how many remain when you take them by eights?",
            "The first update of the second epoch is (what remained + 8) / 8.",
            "SGD and momentum are linear in the gradient. What does Adam divide by?",
        ],
    ),
    Task(
        id="04.2",
        title="Repair the loop",
        answer="updates",
        checks=[
            Check(
                "each micro-batch once",
                1,
                "A gradient that is lost, used twice or used an epoch late is not the gradient of any batch.",
                whole,
            ),
            Check("every update is a mean", 1, "The learning rate was tuned for means, not for 7/8 of one.", means),
        ],
        hints=[
            "After the last micro-batch of an epoch there must be an update, whether the group is full or not.",
            "How many micro-batches of an epoch are in full groups? `n - n % accumulation`.",
            "Those after them are divided by their own number, `n % accumulation`.",
        ],
    ),
    Task(
        id="04.3",
        title="The noise scale, free",
        answer="noise_scale",
        checks=[
            Check("one step", 1, "Two batch sizes, two equations: signal and noise fall out of them.", estimates(1)),
            Check(
                "many steps",
                1,
                "A quotient with a small denominator must not be averaged; its parts may.",
                estimates(12),
            ),
        ],
        hints=[
            "Subtract the two equations: |G|² goes, and s − a = tr Σ (1/b − 1/B) is left.",
            "Multiply them by b and by B and subtract: tr Σ goes, and B·a − b·s = (B − b) |G|² is left.",
            "Average tr Σ over the steps, average |G|² over the steps, and divide last.",
        ],
    ),
    Task(
        id="04.4",
        title="Warm up",
        answer="warm_up",
        checks=[
            Check(
                "the whole schedule",
                1,
                "A rate of 0 wastes a step, and a peak that is never reached is a smaller rate for the whole run.",
                rises,
            )
        ],
        hints=[
            "SGD's linear rule: k times the batch, k times the rate. That is the peak.",
            "One amount is (peak − lr) / over.",
            "Step 0 is one amount above lr, step 1 two, and step over − 1 has the peak.",
        ],
    ),
)

"""Exercise 03: a rank's part, an epoch's order, two wrong seeds in numbers, and who waits for whom."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch03.checks import dealt, nobody, orders_apart, orders_twice, predicted, somebody, uneven

TASKS = (
    Task(
        id="03.1",
        title="The part of a rank",
        answer="part",
        checks=[
            Check(
                "sizes that divide",
                1,
                "Dealt out like cards, a step reads the same examples whatever the number of ranks.",
                dealt(lambda world: [world, 6 * world]),
            ),
            Check(
                "padding",
                1,
                "Every rank must have as many as every other, and nothing may be lost, however few there are.",
                dealt(uneven),
            ),
        ],
        hints=[
            "Without padding the part of a rank is one slice with a step.",
            "How many examples must each rank have? Round the quotient up; the padded order is that times the world.",
            "With fewer examples than ranks the order is repeated more than once: `np.resize` repeats from the start.",
        ],
    ),
    Task(
        id="03.2",
        title="The order of an epoch",
        answer="epoch_order",
        checks=[
            Check(
                "the same on every rank",
                1,
                "The ranks never talk about the order: whoever computes it must get the same one.",
                orders_twice,
            ),
            Check(
                "no two alike",
                1,
                "A second run with another seed must not be the first one, an epoch late.",
                orders_apart,
            ),
        ],
        hints=[
            "A generator made in the function from its arguments gives the same numbers wherever it is made.",
            "Any sum of seed and epoch gives the same number for two pairs. Do not add them.",
            "`np.random.default_rng` takes a list of integers as its seed.",
        ],
    ),
    Task(
        id="03.3",
        title="Predict two mistakes",
        answer="prediction",
        checks=[
            Check(
                "four numbers",
                1,
                "One mistake shows in every step, the other only in what an epoch leaves out.",
                predicted,
            ),
        ],
        hints=[
            "Four ranks that do the same read one local batch, four times.",
            "A rank that draws a quarter leaves an example out with probability 3/4. All four leave it out with …?",
            "In a step a rank draws 32 of 60,000: two ranks hardly ever meet.",
        ],
    ),
    Task(
        id="03.4",
        title="Who waits for whom",
        answer="first_wait",
        checks=[
            Check(
                "nobody waits",
                1,
                "Ranks exchange once per batch: what must be equal is the number of batches, not of examples.",
                nobody,
            ),
            Check(
                "the rank, the step, the other rank",
                1,
                "A hang says nothing by itself; who had how many batches says it all.",
                somebody,
            ),
        ],
        hints=[
            "How many batches are 17 examples in batches of 8? The last one need not be full.",
            "The ranks with the fewest batches end first. In which step does the first of the others wait?",
            "`steps.index(min(steps))` is the lowest rank with the fewest.",
        ],
    ),
)

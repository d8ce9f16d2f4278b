"""Exercise 06: the price of a schedule, the size at which one overtakes another, a plan with mistaken units."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch06.checks import any_schedule, even_chunks, other_worlds, powers_of_two, right_units

TASKS = (
    Task(
        id="06.1",
        title="Price a schedule",
        answer="price",
        checks=[
            Check(
                "the library's schedules",
                1,
                "α by the message in place of the round makes a good algorithm look bad, and the choice wrong.",
                even_chunks,
            ),
            Check(
                "any schedule, any size",
                1,
                "The slowest port decides a round: uneven chunks and ranks with several messages are where it hides.",
                any_schedule,
            ),
        ],
        hints=[
            "Within one round keep two arrays of bytes, sent and received, with one entry per rank.",
            "np.diff(schedule.bounds(size, itemsize)) are the elements of each chunk; np.add.at adds up by rank.",
            "A round costs alpha + beta · max(largest sent, largest received), and nothing if that is 0 bytes.",
        ],
    ),
    Task(
        id="06.2",
        title="From a sweep to the better algorithm",
        answer="overtakes",
        checks=[
            Check(
                "powers of two",
                1,
                "Libraries switch algorithms at such a size; at the wrong one every call nearby pays too much.",
                powers_of_two,
            ),
            Check(
                "other worlds",
                1,
                "Small and odd worlds are where a rule learnt from 64 ranks gives a negative size, or none.",
                other_worlds,
            ),
        ],
        hints=[
            "`collectives.fit(nbytes, seconds).model` has the α and the β of one message.",
            "A tree takes 2⌈log₂ N⌉ rounds with the whole buffer, a ring 2(N − 1) with an N-th of it. Set them equal.",
            "⌈log₂ N⌉ is `(world - 1).bit_length()`. If the ring has no more rounds than the tree it is never slower.",
        ],
    ),
    Task(
        id="06.3",
        title="Mend the units",
        answer="sync_seconds",
        checks=[
            Check(
                "seconds of a sync",
                1,
                "Plans like this one are published: a sync that is promised in 0.34 s then takes 1.22 s.",
                right_units,
            ),
        ],
        hints=[
            "Write the unit behind every number: bytes, bytes per second and direction.",
            "How many bytes per second is 400 Gb/s? And how much of a data sheet's 900 GB/s goes one way?",
            "The third: bytes are divided by 2**20, and what they are then divided by is in millions of bytes.",
        ],
    ),
)

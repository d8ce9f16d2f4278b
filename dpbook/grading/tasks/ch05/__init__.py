"""Exercise 05: a wrong ring, a price, a schedule, a rank program."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch05.checks import (
    broken_ring,
    bytes,
    inputs_stay,
    ownership,
    par_bytes,
    par_rounds,
    program_bytes,
    ring_of,
    rounds,
    when,
    where,
)

__all__ = ["TASKS", "broken_ring"]

TASKS = (
    Task(
        id="05.1",
        title="Mend the published ring",
        answer="ring_all_reduce",
        checks=[
            Check(
                "sizes that divide",
                1,
                "A chunk must be added to the same chunk: anything else mixes gradients of different parameters.",
                ring_of(lambda world: [world, 3 * world]),
            ),
            Check(
                "sizes that do not divide",
                1,
                "Real gradients have no reason to divide by the number of ranks; a tail that is left out stays local.",
                ring_of(lambda world: [3 * world + 1, 10 * world - 1]),
            ),
            Check(
                "fewer elements than ranks",
                1,
                "A bias of ten elements on sixteen ranks is an everyday case.",
                ring_of(lambda world: [1, max(1, world - 1)]),
            ),
            Check("inputs unchanged", 1, "The caller may still need the local gradients.", inputs_stay),
        ],
        hints=[
            "Print the state after the first round of four ranks, and compare it with chapter 05.",
            "Which chunk is sent, and to which chunk is it added? Both must have the same number.",
            "`len(buffer) // n` forgets what is left over: `np.array_split` and `collectives.chunk_bounds` do not.",
        ],
    ),
    Task(
        id="05.2",
        title="Predict the price",
        answer="prediction",
        checks=[
            Check("rounds", 1, "Each round costs a latency; with many ranks that is what hurts.", rounds),
            Check("bytes", 1, "The bytes of one rank hardly grow with the world: why the ring scales.", bytes),
        ],
        hints=[
            "Both halves of the ring have the same number of rounds.",
            "In each round a rank sends one chunk, one 64th of the buffer.",
        ],
    ),
    Task(
        id="05.3",
        title="Halve the tree's rounds",
        answer="all_reduce",
        checks=[
            Check("log2(N) rounds", 2, "For small buffers the number of rounds is the price.", par_rounds),
            Check("bytes", 1, "Rounds can be bought with bytes; here the price is fixed.", par_bytes),
        ],
        hints=[
            "In each round of a tree half of the ranks or more are idle. Let all of them exchange in pairs.",
            "After the first round each pair agrees; after the second each group of four. Who is whose partner?",
            "In round s rank r exchanges with rank `r ^ 2**s`, and both add.",
        ],
    ),
    Task(
        id="05.4",
        title="A reduce-scatter with PyTorch's owners",
        answer="reduce_scatter",
        checks=[
            Check(
                "rank r owns chunk r",
                1,
                "Two halves of an all-reduce fit together only where they agree on the owners.",
                ownership(lambda world: [world, 4 * world]),
            ),
            Check(
                "any size",
                1,
                "Uneven and empty chunks are the rule, and a hang or a lost tail is how they show.",
                ownership(lambda world: [1, 3 * world + 2]),
            ),
            Check("bytes", 1, "Sending whole buffers gives the right sum at N times the price.", program_bytes),
        ],
        hints=[
            "Begin with the chapter's program. After its first half rank r owns chunk r + 1; by how much are you off?",
            "Let every rank send the chunk before the one that it sends in the chapter.",
            "Use `comm.sendrecv`: a circle in which everyone sends first waits for ever.",
        ],
    ),
    Task(
        id="05.5",
        title="Find the fault",
        answer="fault",
        checks=[
            Check("round", 1, "When: every state before that round is right.", when),
            Check("rank and chunk", 1, "Where: the other chunks and ranks are not to blame.", where),
        ],
        hints=[
            "Which contribution is missing at the end, and of which chunk?",
            "A chunk travels round the ring once. Follow that chunk, round by round, in the picture or in the viewer.",
            "`collectives.find_fault(broken)` says it all.",
        ],
    ),
)

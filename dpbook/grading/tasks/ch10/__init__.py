"""Exercise 10: broadcast and average, hooks, a published wrapper with two mistakes, and the reader's own."""

from __future__ import annotations

from dpbook.grading import Check, Task
from dpbook.grading.tasks.ch10.checks import (
    START_SECONDS,
    accumulation,
    averages,
    big_batch,
    hooks,
    in_time,
    one_bucket,
    processes,
    several_buckets,
)

__all__ = ["TASKS"]

TASKS = (
    Task(
        id="10.1",
        title="Broadcast and average",
        answer="Naive",
        checks=[
            Check(
                "the steps of the big batch",
                1,
                "Replicas that begin apart stay apart, and a sum that is not divided is a step of N times the size.",
                averages,
            )
        ],
        hints=[
            "What has a module besides parameters that every rank must have alike? Try `module.buffers()`.",
            "A frozen parameter must be broadcast too, but it has no gradient: its `grad` is None.",
            "Nothing is in the tensor until `wait()` was called on what `all_reduce` returned.",
        ],
    ),
    Task(
        id="10.2",
        title="Send during backward",
        answer="attach",
        checks=[
            Check(
                "sent in time, waited for at the end",
                1,
                "A hook that waits stops backward; a message that is sent after backward hides behind nothing.",
                hooks,
            )
        ],
        hints=[
            "`parameter.register_post_accumulate_grad_hook(f)` calls `f(parameter)` once its gradient is complete.",
            "A hook cannot be put on a parameter that is not trained: ask `requires_grad` first.",
            "Keep the handles in a list. `finish` waits for each of them and empties the list for the next step.",
        ],
    ),
    Task(
        id="10.3",
        title="Two published mistakes",
        answer="Repaired",
        checks=[
            Check(
                "one bucket that never gets full",
                1,
                "Small models, and the last bucket of every model: these gradients stay local and the replicas drift.",
                one_bucket,
            ),
            Check(
                "several buckets",
                1,
                "A list that outlives its bucket mixes up gradients; a bucket that goes out late hides nothing.",
                several_buckets,
            ),
        ],
        hints=[
            "Go through a step by hand with a cap above all gradients. Which message is sent, and when?",
            "Then with three buckets: what is in each of the lists when the second bucket is sent?",
            "What begins anew with every bucket must be emptied with every bucket. What is left when backward ends "
            "must go out in `finish`, unless nothing is left.",
        ],
    ),
    Task(
        id="10.4",
        title="Capstone: your own DDP",
        answer="MyDDP",
        checks=[
            Check(
                "the gradients of the big batch",
                1,
                "It is what data parallelism promises: not a similar gradient but this one, on every rank.",
                big_batch,
            ),
            Check(
                "buckets in order, during backward",
                1,
                "Buckets in an order of one's own add what does not belong together; those sent late hide nothing.",
                in_time,
            ),
            Check(
                "accumulation",
                1,
                "Every micro-batch that is synced needlessly costs a whole sync; one that is forgotten is lost.",
                accumulation,
            ),
            Check(
                "three real processes",
                1,
                "Threads take turns in one interpreter. Processes do not, and they are what you will train with.",
                processes,
                seconds=START_SECONDS,
            ),
        ],
        hints=[
            "Begin with your answers to 10.1 and 10.2, and with one bucket for everything. Then cut.",
            "`overlap.plan(tensors, cap, first=None)` makes the buckets from `overlap.Tensor(name, shape, dtype)`; "
            "`plan.places[k]` says in which bucket tensor k lies, and where.",
            "Count for every bucket how many gradients are missing. Send bucket b when it misses none *and* the "
            "buckets before it have been sent, and then look whether the next one is full already.",
            "Inside `no_sync` the hooks return at once. Restore the flag in `finally`, to what it was before.",
            "After `finish` everything is as before the step: the counts are full again, the next bucket is the first.",
        ],
    ),
)

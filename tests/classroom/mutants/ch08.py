"""Wrong answers to exercise 08, each with the mistake that people make."""

from itertools import accumulate

from dpbook.book.ch08 import Model, simulate
from dpbook.overlap import Tensor, plan
from tests.classroom.mutants.edits import Mutant, edit, named


def bound(tensors, ready, cap, first):
    """A bucket closes before it would exceed its limit."""
    groups, held = [], 0
    for index in ready:
        limit = cap if len(groups) > 1 else first
        if not groups or held + tensors[index].nbytes > limit:
            groups, held = [*groups, []], 0
        groups[-1].append(index)
        held += tensors[index].nbytes
    return groups


def _buckets(nbytes, cap):
    made, held = [], 0
    for position, size in enumerate(nbytes):
        held += size
        if held >= cap:
            made.append((held, position))
            held = 0
    return made


def smallest_tensor(nbytes, cap):
    return min((size + 1 for size in nbytes if size >= cap), default=None)


def neighbours(nbytes, cap):
    """Any sum of neighbours, whether a bucket has it or not."""
    sums = {total for k in range(len(nbytes)) for total in accumulate(nbytes[k:])}
    return min((total + 1 for total in sums if total >= cap), default=None)


def doubled(nbytes, cap):
    """Doubles the cap until something changes."""
    limit, now = cap, _buckets(nbytes, cap)
    while limit <= sum(nbytes):
        limit *= 2
        if _buckets(nbytes, limit) != now:
            return limit
    return None


def whatever_is_ready(ready, nbytes, alpha, beta):
    """Start everything that is ready as soon as the wire is free."""
    order, groups, free = per_tensor(ready, nbytes, alpha, beta), [], 0.0
    while order:
        free = max(free, ready[order[0][0]])
        group = [index for (index,) in order if ready[index] <= free]
        groups, order = [*groups, group], order[len(group) :]
        free += alpha + beta * sum(nbytes[index] for index in group)
    return groups


def merged(ready, nbytes, alpha, beta):
    """Joins the two neighbours whose union helps most, as long as one does."""

    def end(cuts):
        seconds = 0.0
        for group in cuts:
            seconds = max(seconds, *(ready[i] for i in group)) + alpha + beta * sum(nbytes[i] for i in group)
        return seconds

    groups = per_tensor(ready, nbytes, alpha, beta)
    while len(groups) > 1:
        joined = [[*groups[:k], groups[k] + groups[k + 1], *groups[k + 2 :]] for k in range(len(groups) - 1)]
        best = min(joined, key=end)
        if end(best) >= end(groups):
            break
        groups = best
    return groups


def per_tensor(ready, nbytes, alpha, beta):
    return [[index] for index in sorted(range(len(ready)), key=lambda index: ready[index])]


def all_in_one(ready, nbytes, alpha, beta):
    return [list(range(len(ready)))]


def in_their_order(ready, nbytes, alpha, beta):
    """Never looks at when a gradient is ready."""
    return [[index] for index in range(len(ready))]


def best_cap(ready, nbytes, alpha, beta):
    order = sorted(range(len(ready)), key=lambda index: ready[index])
    tensors = [Tensor(str(k), size, "uint8") for k, size in enumerate(nbytes)]
    sizes = [nbytes[index] for index in order]
    caps = {total for k in range(len(sizes)) for total in accumulate(sizes[k:])}
    plans = [plan(tensors, cap, None, order).groups for cap in sorted(caps)]
    return min(plans, key=lambda groups: simulate(Model(ready, nbytes, alpha, beta), groups).exposed())


def coarse_sweep(ready, nbytes, alpha, beta):
    """The best of a few caps, of one call each and of one for all."""
    order = sorted(range(len(ready)), key=lambda index: ready[index])
    tensors = [Tensor(str(k), size, "uint8") for k, size in enumerate(nbytes)]
    plans = [plan(tensors, cap, None, order).groups for cap in (1, *(sum(nbytes) // k for k in (8, 4, 1)))]
    return min(plans, key=lambda groups: simulate(Model(ready, nbytes, alpha, beta), groups).exposed())


CLOSED, HELD = "min(closed) + 1", "nbytes[:-1]"
ONE, SEVERAL, NEXT = "one dtype", "several dtypes", "the next cap that matters"
NO_WORSE, BETTER = "no worse than one call each, or one for all", "better than any cap"

MUTANTS = (
    Mutant("08.1", "a bound, no threshold", bound, ONE),
    edit("08.1", "more than the limit", {">= limit": "> limit"}, ONE),
    edit("08.1", "the last bucket never sent", {"closed + list(filling.values())": "closed"}, ONE),
    edit(
        "08.1",
        "from the last to the first, always",
        {"for index in ready": "for index in reversed(range(len(tensors)))"},
        ONE,
    ),
    edit("08.1", "dtypes mixed", {"tensors[index].dtype": '""'}, SEVERAL),
    edit("08.1", "one first bucket for all dtypes", {"count.get(dtype) else": "count else"}, SEVERAL),
    edit(
        "08.1",
        "the rest as it was opened",
        {
            "filling.pop(": "filling.get(",
            "closed.append(bucket)": "closed.append(bucket)\n            filling.pop(dtype, None)",
        },
        SEVERAL,
    ),
    edit("08.2", "the last bucket counts", {HELD: "nbytes"}, NEXT),
    edit("08.2", "not one more", {CLOSED: "min(closed)"}, NEXT),
    edit("08.2", "the first bucket decides", {CLOSED: "closed[0] + 1"}, NEXT),
    Mutant("08.2", "the smallest tensor", smallest_tensor, NEXT),
    Mutant("08.2", "twice the cap", doubled, NEXT),
    Mutant("08.2", "any neighbours", neighbours, NEXT),
    edit("08.3", "the last bucket first", {"groups[::-1]": "groups"}, NO_WORSE),
    edit("08.3", "the last bucket never sent", {"groups[::-1]": "groups[:0:-1]"}, NO_WORSE),
    edit("08.3", "latency forgotten", {"+ alpha + beta": "+ beta", "min(range(n)": "min(range(n)[::-1]"}, NO_WORSE),
    edit("08.3", "as if all were ready", {"max(arrived[m], ready[order[n - 1]])": "arrived[m]"}, NO_WORSE),
    Mutant("08.3", "a few caps tried", coarse_sweep, "no worse than the best cap"),
    Mutant("08.3", "whatever is ready", whatever_is_ready, BETTER),
    Mutant("08.3", "neighbours joined", merged, BETTER),
    Mutant("08.3", "the best cap", best_cap, BETTER),
)

WORTHLESS = (
    ("08.1", lambda tensors, ready, cap, first: [list(ready)]),
    *named(MUTANTS, "08.1", "the last bucket never sent"),
    ("08.2", smallest_tensor),
    ("08.2", lambda nbytes, cap: None),
    ("08.3", per_tensor),
    ("08.3", all_in_one),
    ("08.3", in_their_order),
)
"""Answers that must not earn a single point."""

"""Wrong answers to exercise 08, each with the mistake that people make."""

from itertools import accumulate

from dpbook.book.ch08 import Model, simulate
from dpbook.classroom.tasks.judging import Mutant
from dpbook.overlap import Tensor, plan


def filled(
    *,
    full=lambda held, limit: held >= limit,
    by_dtype=True,
    own_first=True,
    flush=True,
    given=True,
    limited=True,
    opened=False,
):
    """The rule with one thing wrong."""

    def answer(tensors, ready, cap, first):
        closed, filling, counts = [], {}, {}
        for index in ready if given else reversed(range(len(tensors))):
            dtype = tensors[index].dtype if by_dtype else ""
            bucket = [*(filling.get(dtype, []) if opened else filling.pop(dtype, [])), index]
            count = counts.get(dtype if own_first else "", 0)
            if full(sum(tensors[i].nbytes for i in bucket), cap if count or not limited else first):
                closed.append(bucket)
                filling.pop(dtype, None)
                counts[dtype if own_first else ""] = count + 1
            else:
                filling[dtype] = bucket
        return closed + list(filling.values()) if flush else closed

    return answer


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


def last_too(nbytes, cap):
    """The last bucket cannot grow, but counts."""
    return min((held for held, _ in _buckets(nbytes, cap)), default=-1) + 1 or None


def no_one_more(nbytes, cap):
    """The cap up to which nothing changes, in place of the one at which something does."""
    return min((held for held, position in _buckets(nbytes, cap) if position < len(nbytes) - 1), default=None)


def first_bucket_only(nbytes, cap):
    held, position = next(iter(_buckets(nbytes, cap)), (0, len(nbytes)))
    return held + 1 if position < len(nbytes) - 1 else None


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


def optimal(*, latency=True, waits=True, backwards=False, flush=True):
    """The reference with one thing wrong."""

    def answer(ready, nbytes, alpha, beta):
        order = sorted(range(len(ready)), key=lambda index: ready[index])
        best = [(0.0, [])]
        for n in range(1, len(order) + 1):
            choices = []
            for m in range(n):
                start = max(best[m][0], ready[order[n - 1]]) if waits else best[m][0]
                seconds = (alpha if latency else 0) + beta * sum(nbytes[i] for i in order[m:n])
                choices.append((start + seconds, [*best[m][1], order[m:n]]))
            best.append(min(choices))
        groups = best[-1][1]
        return groups[::-1] if backwards else groups if flush else groups[:-1]

    return answer


MUTANTS = (
    Mutant("08.1", "a bound, no threshold", bound, "one dtype"),
    Mutant("08.1", "more than the limit", filled(full=lambda held, limit: held > limit), "one dtype"),
    Mutant("08.1", "the last bucket never sent", filled(flush=False), "one dtype"),
    Mutant("08.1", "from the last to the first, always", filled(given=False), "one dtype"),
    Mutant("08.1", "dtypes mixed", filled(by_dtype=False), "several dtypes"),
    Mutant("08.1", "one first bucket for all dtypes", filled(own_first=False), "several dtypes"),
    Mutant("08.1", "the rest as it was opened", filled(opened=True), "several dtypes"),
    Mutant("08.2", "the last bucket counts", last_too, "the next cap that matters"),
    Mutant("08.2", "not one more", no_one_more, "the next cap that matters"),
    Mutant("08.2", "the first bucket decides", first_bucket_only, "the next cap that matters"),
    Mutant("08.2", "the smallest tensor", smallest_tensor, "the next cap that matters"),
    Mutant("08.2", "twice the cap", doubled, "the next cap that matters"),
    Mutant("08.2", "any neighbours", neighbours, "the next cap that matters"),
    Mutant("08.3", "the last bucket first", optimal(backwards=True), "no worse than one call each, or one for all"),
    Mutant("08.3", "the last bucket never sent", optimal(flush=False), "no worse than one call each, or one for all"),
    Mutant("08.3", "latency forgotten", optimal(latency=False), "no worse than one call each, or one for all"),
    Mutant("08.3", "as if all were ready", optimal(waits=False), "no worse than one call each, or one for all"),
    Mutant("08.3", "a few caps tried", coarse_sweep, "no worse than the best cap"),
    Mutant("08.3", "whatever is ready", whatever_is_ready, "better than any cap"),
    Mutant("08.3", "neighbours joined", merged, "better than any cap"),
    Mutant("08.3", "the best cap", best_cap, "better than any cap"),
)

WORTHLESS = (
    ("08.1", lambda tensors, ready, cap, first: [list(ready)]),
    ("08.1", filled(flush=False)),
    ("08.2", smallest_tensor),
    ("08.2", lambda nbytes, cap: None),
    ("08.3", per_tensor),
    ("08.3", all_in_one),
    ("08.3", in_their_order),
)
"""Answers that must not earn a single point."""

"""Checks of exercise 08: the rule of the buckets, a slider that does nothing, and buckets that beat every cap."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, product
from typing import Any

import numpy as np

from dpbook.book.ch08 import Model, mlp, sample, simulate
from dpbook.classroom import (
    Answer,
    ParResult,
    Wrong,
    call,
    describe,
    expect,
    expect_at_most,
    expect_equal,
    known_mistake,
)
from dpbook.core import InvalidArgument
from dpbook.overlap import MIB, Tensor, plan

COUNTS = (1, 2, 5, 7, 16)  # gradients or layers in the random cases

# 08.1: the bucket rule

MAXIMUM = 20


def _on_tensors(fill: Callable[..., Any], given: list[tuple[str, int, str]], *arguments: Any) -> Any:
    return fill([Tensor(*fields) for fields in given], *arguments)


REORDERED = (
    "These are the right buckets in another order of launch: ranks that launch in different orders add different "
    "buckets. What never closes comes last, by its last gradient."
)


def _known(tensors: Sequence[Tensor], ready: Sequence[int], cap: int, first: int, got: Any) -> str:
    """Return the sentence on the mistake that gives the groups ``got``, "" if it is another one."""
    groups = plan(tensors, cap, first, ready).groups
    if _sorted(groups) == _sorted(got):
        return REORDERED
    mistakes = {
        "The first bucket closes at `first`, which is missing here.": plan(tensors, cap, None, ready).groups,
        "The last bucket is missing: what has not closed when backward ends is sent then.": groups[:-1],
        "The gradients are taken in the order of the parameters, not in the order in which they become ready.": (
            plan(tensors, cap, first, range(len(tensors))).groups
        ),
        "A bucket closes as soon as it holds its limit, not when it holds more.": (
            plan(tensors, cap + 1, first + 1, ready).groups
        ),
    }
    return known_mistake(got, {why: [list(group) for group in result] for why, result in mistakes.items()})


def _sorted(groups: Any) -> Any:
    """Return the groups without their order; any other value as it is."""
    lists = isinstance(groups, list | tuple) and all(isinstance(group, list | tuple) for group in groups)
    return sorted(map(list, groups), key=repr) if lists else groups


def fills(answer: Answer, rng: np.random.Generator, *, dtypes: Sequence[str]) -> None:
    """Check tensors of these dtypes, at limits that are met exactly and at others."""
    for given, ready, limits in _fillings(rng, dtypes):
        tensors = [Tensor(*fields) for fields in given]
        for cap, first in limits:
            expected = plan(tensors, cap, first, ready).groups
            by_hand = tensors, ready, cap, first
            got = call(answer, given, ready, cap, first, through=_on_tensors, by_hand=by_hand)
            try:
                expect_equal(expected, got)
            except Wrong:  # it names one group: show the whole plan
                shown = f"bytes {[tensor.nbytes for tensor in tensors]}"
                why = _known(tensors, ready, cap, first, got)
                raise Wrong(describe([list(group) for group in expected]), describe(got), shown, why=why) from None


Filling = tuple[list[tuple[str, int, str]], list[int], list[tuple[int, int]]]
"""Tensors, their ready order, and pairs of (cap, first)."""


def _fillings(rng: np.random.Generator, dtypes: Sequence[str]) -> Iterator[Filling]:
    if len(dtypes) > 1:  # neither bucket closes; the one opened last gets its last gradient first
        kinds = [dtypes[k] for k in (0, 1, 0)]
        yield [(f"t{k}", 1 + k, kind) for k, kind in enumerate(kinds)], [2, 1, 0], [(100, 100)]
    for count, shuffled in product(COUNTS, (False, True)):
        sizes, kinds = rng.integers(1, MAXIMUM, count).tolist(), rng.choice(dtypes, count).tolist()
        ready = rng.permutation(count).tolist() if shuffled else list(range(count))[::-1]
        given = [(f"t{k}", sizes[k], kinds[k]) for k in range(count)]
        tensors = tuple(Tensor(*fields) for fields in given)
        exact = tensors[ready[0]].nbytes + tensors[ready[-1]].nbytes
        drawn = [int(limit) for limit in rng.integers(1, 5 * MAXIMUM, 2)]
        yield given, ready, [(exact, tensors[ready[0]].nbytes), (drawn[0], drawn[0]), (drawn[0], drawn[1])]


fills_one_dtype = partial(fills, dtypes=["float32"])
fills_several_dtypes = partial(fills, dtypes=["float32", "bfloat16", "float64"])


# 08.2: the slider


def _next_change(nbytes: list[int], cap: int) -> int | None:
    """Return the next cap that changes the buckets. All candidates are tried: one more than the bytes of neighbours."""
    tensors = [Tensor(str(k), size, "uint8") for k, size in enumerate(nbytes)]

    def groups(limit: int) -> tuple[tuple[int, ...], ...]:
        return plan(tensors, limit, None, range(len(tensors))).groups

    sums = {total for k in range(len(nbytes)) for total in accumulate(nbytes[k:])}
    now = groups(cap)
    return next((total + 1 for total in sorted(sums) if total >= cap and groups(total + 1) != now), None)


def slides(answer: Answer, rng: np.random.Generator) -> None:
    cases = [([5, 2, 3, 1, 2], 4), ([3, 3, 3, 1], 3), ([64, 64, 64], 1), ([5, 5, 4], 4), ([9, 3, 5, 1], 3)]
    for count in COUNTS:
        for _ in range(3):
            nbytes = rng.integers(1, MAXIMUM, count).tolist()
            cases.append((nbytes, int(rng.integers(1, sum(nbytes) + 2))))
    for bias in (False, True):
        cases.append(([tensor.nbytes for tensor in reversed(mlp(8, 4096, bias))], MIB))
    for nbytes, cap in cases:
        expected = _next_change(nbytes, cap)
        mistakes = {
            "At this cap the plan is still the same: a bucket closes as soon as it holds its cap or more.": (
                None if expected is None else expected - 1
            ),
            "This is the next size of a bucket, and twice the cap is no limit for anything.": 2 * cap,
        }
        expect_equal(expected, call(answer, nbytes, cap), mistakes=mistakes)


# 08.3: buckets that beat every cap

MODELS, LAYERS = 3, 12
PAR = 0.95  # share of the best cap's exposed time that a plan must not exceed
HARD = (698511, 146005, 978767, 139396)
"""Models for which neither sending all ready gradients at once nor greedily joining neighbours is enough."""
MAX_OPTIMUM = 0.9  # share of the best cap's exposed time below which the best plan of a random model must be


def _milliseconds(model: Model, groups: Sequence[Sequence[int]]) -> float:
    """Return exposed communication in milliseconds, rounded to hide the last bits."""
    return round(1e3 * simulate(model, groups).exposed(), 6)


def _in_order(model: Model) -> list[int]:
    return sorted(range(len(model.ready)), key=lambda index: model.ready[index])


def _best_cap(model: Model) -> float:
    """Return the milliseconds exposed by the best of all caps."""
    order = _in_order(model)
    tensors = [Tensor(str(k), size, "uint8") for k, size in enumerate(model.nbytes)]
    sizes = [model.nbytes[index] for index in order]
    caps = {total for k in range(len(sizes)) for total in accumulate(sizes[k:])}
    plans = {plan(tensors, cap, None, order).groups for cap in caps}
    return min(_milliseconds(model, groups) for groups in plans)


def _least(model: Model) -> float:
    """Return the milliseconds exposed by the best plan of all.

    No plan gains by skipping a ready gradient for a later one, so buckets of neighbours in ready order are enough. If
    the first n gradients arrive as early as possible, they never delay the others.
    """
    order = _in_order(model)
    ready = [model.ready[index] for index in order]
    sent = [0, *accumulate(model.nbytes[index] for index in order)]
    arrived = [0.0]
    for n in range(1, len(order) + 1):
        ends = (max(arrived[m], ready[n - 1]) + model.alpha + model.beta * (sent[n] - sent[m]) for m in range(n))
        arrived.append(min(ends))
    return 1e3 * (arrived[-1] - ready[-1])


def _exposed(answer: Answer, model: Model, where: str) -> float:
    """Return the milliseconds exposed by the answer's plan, after a check that it is a plan."""
    got = call(answer, *model, where=where, by_hand=f"cut(*{where})")
    expect(got is not None, "groups that hold every gradient once", "None", where)
    try:
        return _milliseconds(model, got)
    except InvalidArgument as error:
        raise Wrong("groups that hold every gradient once", str(error), where, cause="no partition") from None


def simple(answer: Answer, rng: np.random.Generator) -> None:
    for layers in COUNTS:
        for _ in range(3):
            seed = int(rng.integers(10**6))
            model, where = sample(layers, seed), f"sample({layers}, seed={seed})"
            order = _in_order(model)
            par = min(_milliseconds(model, [[index] for index in order]), _milliseconds(model, [order]))
            expect_at_most(par, _exposed(answer, model, where), "ms exposed", where)


def below_caps(answer: Answer, rng: np.random.Generator, *, share: float) -> ParResult:
    """Check that the exposed time is at most this share of the best cap's, for each of several models."""
    pars, reached = 0.0, 0.0
    for seed, best in _worthwhile(rng):
        where = f"sample({LAYERS}, seed={seed})"
        exposed = _exposed(answer, sample(LAYERS, seed), where)
        expect_at_most(round(share * best, 6), exposed, "ms exposed", where)
        pars, reached = pars + share * best, reached + exposed
    return expect_at_most(round(pars, 3), round(reached, 3), f"ms exposed in {MODELS} models")


def _worthwhile(rng: np.random.Generator) -> Iterator[tuple[int, float]]:
    """Yield seeds of models with plans that beat all caps, one of them of `HARD`, and their best caps' milliseconds."""
    first, remaining = [int(rng.choice(HARD))], MODELS
    while remaining:
        seed = first.pop() if first else int(rng.integers(10**6))
        best, least = _best_exposed(seed)
        if least <= MAX_OPTIMUM * best:
            remaining -= 1
            yield seed, best


@cache
def _best_exposed(seed: int) -> tuple[float, float]:
    """Return the milliseconds exposed by the best cap and by the best plan of all."""
    model = sample(LAYERS, seed)
    return _best_cap(model), _least(model)


no_worse_than_caps, better_than_caps = partial(below_caps, share=1.0), partial(below_caps, share=PAR)

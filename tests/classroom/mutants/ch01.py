"""Wrong answers to exercise 01, each with the mistake that people make."""

import numpy as np

from dpbook.classroom.tasks.judging import Mutant


def _step(combine=lambda g, world: g.mean(axis=0), shards=np.split, params=lambda replicas, rank: replicas[rank]):
    def step(replicas, gradient, x, y, lr):
        world = len(replicas)
        parts = zip(shards(x, world), shards(y, world), strict=True)
        local = np.stack([gradient(params(replicas, r), *part) for r, part in enumerate(parts)])
        return replicas - lr * combine(local, world)

    return step


def _one_rank_alone(local, world):
    averaged = np.tile(local.mean(axis=0), (world, 1))
    averaged[-1] = local[-1]
    return averaged


def _own_order(local, world):
    """Each rank begins the sum with its own gradient: equal to rounding, but not equal."""
    return np.stack([sum(np.roll(local, -rank, axis=0)) / world for rank in range(world)])


def _dealt(examples, world):
    """Dealt out like cards."""
    return [examples[rank::world] for rank in range(world)]


def _synced(replicas, gradient, x, y, lr):
    """The gradients are not exchanged, but the parameters that come of them."""
    alone = _step(combine=lambda local, world: local)(replicas, gradient, x, y, lr)
    return np.tile(alone.mean(axis=0), (len(alone), 1))


def _meters(drift, gap=lambda averaged, whole: np.abs(averaged - whole).max()):
    return lambda replicas, averaged, whole: (float(drift(replicas)), float(gap(averaged, whole)))


def _largest(replicas):
    return np.ptp(replicas, axis=0).max()


def _farthest(replicas):
    return max(np.linalg.norm(one - other) for one in replicas for other in replicas)


def _shows(**changed):
    right = {
        "no mistake": "neither",
        "the division by the world size is missing": "gap",
        "one rank ignores the average": "both",
        "every rank reads the first shard": "gap",
        "one rank starts from other parameters": "both",
    }
    return right | {next(name for name in right if key in name): value for key, value in changed.items()}


MUTANTS = (
    Mutant("01.1", "sum in place of average", (-182, -144), "three and three"),
    Mutant("01.1", "sign", (91, 72), "three and three"),
    Mutant("01.1", "unequal shards do not matter", (-91, -91), "two and four"),
    Mutant("01.1", "half of the derivative", (-45.5, -36), "two and four"),
    Mutant("01.2", "no division", _step(combine=lambda g, world: g.sum(axis=0)), "the big batch's step"),
    Mutant("01.2", "no exchange", _step(combine=lambda g, world: g), "the big batch's step"),
    Mutant("01.2", "last rank ignores it", _step(combine=_one_rank_alone), "identical replicas"),
    Mutant("01.2", "own order of summation", _step(combine=_own_order), "identical replicas"),
    Mutant("01.2", "everyone reads all", _step(shards=lambda a, world: [a] * world), "own shard, own parameters"),
    Mutant(
        "01.2", "rank 0's parameters", _step(params=lambda replicas, rank: replicas[0]), "own shard, own parameters"
    ),
    Mutant("01.2", "every world-th example", _step(shards=_dealt), "own shard, own parameters"),
    Mutant("01.2", "the parameters averaged too", _synced, "own shard, own parameters"),
    Mutant("01.3", "standard deviation", _meters(lambda r: r.std(axis=0).max()), "any two replicas"),
    Mutant("01.3", "against the mean", _meters(lambda r: np.abs(r - r.mean(axis=0)).max()), "any two replicas"),
    Mutant("01.3", "against rank 0 only", _meters(lambda r: np.abs(r - r[0]).max()), "any two replicas"),
    Mutant("01.3", "Euclidean distance", _meters(_farthest), "any two replicas"),
    Mutant("01.3", "never 0", _meters(lambda r: _largest(r) + 1e-16), "no drift"),
    Mutant("01.3", "signed gap", _meters(_largest, lambda a, w: (a - w).max()), "the largest gap"),
    Mutant("01.3", "gap of rank 0", _meters(_largest, lambda a, w: np.abs(a[0] - w).max()), "the largest gap"),
    Mutant(
        "01.3", "errors cancel", _meters(_largest, lambda a, w: np.abs((a - w).sum(axis=0)).max()), "the largest gap"
    ),
    Mutant("01.4", "local batch", lambda n, b, k, p: (b, n // b, 2 * p), "global batch"),
    Mutant("01.4", "rounds up", lambda n, b, k, p: (k * b, -(-n // (k * b)), 2 * p), "steps"),
    Mutant("01.4", "padded shards", lambda n, b, k, p: (k * b, -(-n // k) // b, 2 * p), "steps"),
    Mutant("01.4", "at least one step", lambda n, b, k, p: (k * b, max(1, n // (k * b)), 2 * p), "steps"),
    Mutant("01.4", "memory is shared out", lambda n, b, k, p: (k * b, n // (k * b), 2 * p // k), "memory"),
    Mutant("01.4", "parameters only", lambda n, b, k, p: (k * b, n // (k * b), p), "memory"),
    Mutant("01.5", "drift shows a missing division", _shows(division="drift"), "the first three runs"),
    Mutant("01.5", "drift shows a repeated shard", _shows(reads="both"), "the last two runs"),
    Mutant("01.5", "rounding counts", _shows(mistake="gap"), "the first three runs"),
    Mutant("01.5", "only drift", _shows(ignores="drift"), "the first three runs"),
    Mutant("01.5", "the gap forgives a start", _shows(starts="drift"), "the last two runs"),
)

WORTHLESS = (
    ("01.2", lambda params, gradient, x, y, lr: None),
    ("01.2", lambda params, gradient, x, y, lr: params),
)
"""Answers that must not earn a single point."""

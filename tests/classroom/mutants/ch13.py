"""Wrong answers to exercise 13, each with the mistake that people make."""

from math import ceil, prod

from dpbook.classroom.tasks.judging import Mutant

# 13.1


def _stage(
    sharded=lambda w, g, o: (0, o, o + g, o + g + w),
    frozen=True,
    activations=lambda a, world, stage: a,
    fits=lambda memory, capacity: memory <= capacity,
):
    """``sharded(weights, gradients, optimizer)`` are the bytes that each stage divides by the world."""

    def first_stage(parameters, trained, world, capacity, recipe, extra):
        each = trained if frozen else parameters
        parts = recipe[0] * parameters, recipe[1] * each, recipe[2] * each
        for stage, share in enumerate(sharded(*parts)):
            if fits(sum(parts) - share + share / world + activations(extra, world, stage), capacity):
                return stage
        return None

    return first_stage


def never_none(*case):
    stage = _stage()(*case)
    return 3 if stage is None else stage


def usual_recipe(parameters, trained, world, capacity, recipe, extra):
    return _stage()(parameters, trained, world, capacity, (2, 2, 12), extra)


# 13.2


def _fewest(
    step=lambda f, b, ring: f + max(b, ring),
    ring=lambda n, p, rate: 2 * (n - 1) / n * 2 * p / rate,
    memory=lambda p, n: 4 * p + 12 * p / n,
    whole=True,
    efficient=lambda f, b, seconds: (f + b) / seconds,
    pick=min,
    steps=lambda exact: exact,
    below=lambda value, limit: value <= limit,
):
    def fewest_gpus(run, gpu, sizes):
        def will_do(n):
            one = run["parameters"] * run["sequences"] * run["context"] / n / gpu["flops"]
            f, b = 2 * one, 4 * one
            seconds = step(f, b, ring(n, run["parameters"], gpu["bandwidth"]))
            days = steps(run["tokens"] / (run["sequences"] * run["context"])) * seconds / 86400
            return (
                below(days, run["days"])
                and below(memory(run["parameters"], n), gpu["memory"])
                and (run["sequences"] % n == 0 or not whole)
                and below(run["efficiency"], efficient(f, b, seconds))
            )

        fitting = [n for n in sizes if will_do(n)]
        return pick(fitting) if fitting else None

    return fewest_gpus


# 13.4


def _group(stride=lambda sizes, name: prod(list(sizes.values())[list(sizes).index(name) + 1 :]), member=True):
    def group(sizes, rank, name):
        apart = stride(sizes, name)
        place = rank // apart % sizes[name]
        first = rank - place * apart if member else 0
        return [first + k * apart for k in range(sizes[name])]

    return group


def first_fastest(sizes, rank, name):
    return _group(lambda s, n: prod(list(s.values())[: list(s).index(n)]))(sizes, rank, name)


def all_others(sizes, rank, name):
    """Ranks that have the same coordinate, instead of those that differ in it alone."""
    apart = prod(list(sizes.values())[list(sizes).index(name) + 1 :])
    return [r for r in range(prod(sizes.values())) if r // apart % sizes[name] == rank // apart % sizes[name]]


STAGE, TIME, LIMITS, WALLS, GROUP = (
    "the first stage that fits",
    "in time, and in memory",
    "whole sequences, and efficient",
    "four walls",
    "any mesh, any rank",
)

MUTANTS = (
    Mutant("13.1", "one stage too early", _stage(lambda w, g, o: (o, o + g, o + g + w, o + g + w)), STAGE),
    Mutant("13.1", "weights before gradients", _stage(lambda w, g, o: (0, o, o + w, o + g + w)), STAGE),
    Mutant("13.1", "frozen parameters have gradients", _stage(frozen=False), STAGE),
    Mutant("13.1", "activations sharded", _stage(activations=lambda a, n, stage: a / n if stage == 3 else a), STAGE),
    Mutant("13.1", "stage 3 if nothing fits", never_none, STAGE),
    Mutant("13.1", "always 16 bytes", usual_recipe, STAGE),
    Mutant("13.1", "less, not at most", _stage(fits=lambda memory, capacity: memory < capacity), STAGE),
    Mutant("13.2", "computation only", _fewest(step=lambda f, b, ring: f + b), TIME),
    Mutant("13.2", "forward hides too", _fewest(step=lambda f, b, ring: max(f + b, ring)), TIME),
    Mutant("13.2", "half of the ring", _fewest(ring=lambda n, p, rate: (n - 1) / n * 2 * p / rate), TIME),
    Mutant("13.2", "everything sharded", _fewest(memory=lambda p, n: 16 * p / n), TIME),
    Mutant("13.2", "less, not at most", _fewest(below=lambda value, limit: value < limit), TIME),
    Mutant("13.2", "steps rounded up", _fewest(steps=ceil), TIME),
    Mutant("13.2", "sequences cut", _fewest(whole=False), LIMITS),
    Mutant("13.2", "efficiency forgotten", _fewest(efficient=lambda f, b, seconds: 1.0), LIMITS),
    Mutant("13.3", "the tokens of a step", (1050, 54, 1050, 8400), WALLS),
    Mutant("13.3", "all experts compute", (264, 526, 1050, 4208), WALLS),
    Mutant("13.3", "three halves of the bytes, two thirds of the way", (176, 54, 1050, 4208), WALLS),
    Mutant("13.3", "a whole ring behind backward", (264, 54, 526, 4208), WALLS),
    Mutant("13.3", "copies for GPUs", (264, 54, 1050, 526), WALLS),
    Mutant("13.3", "sequences for tokens", (1, 1, 1, 1), WALLS),
    Mutant("13.4", "first dimension fastest", first_fastest, GROUP),
    Mutant("13.4", "always neighbours", _group(lambda sizes, name: 1), GROUP),
    Mutant("13.4", "always rank 0's", _group(member=False), GROUP),
    Mutant("13.4", "the same coordinate", all_others, GROUP),
    Mutant("13.4", "the size for the stride", _group(lambda sizes, name: sizes[name]), GROUP),
)

WORTHLESS = (
    ("13.1", lambda *case: 0),
    ("13.1", lambda *case: None),
    ("13.2", lambda run, gpu, sizes: min(sizes)),
    ("13.2", lambda run, gpu, sizes: None),
    ("13.2", _fewest(step=lambda f, b, ring: f + b)),
    ("13.2", _fewest(step=lambda f, b, ring: f + b + ring)),
    ("13.2", _fewest(pick=max)),
    ("13.2", _fewest(pick=lambda fitting: fitting[0])),
    ("13.3", (1050, 1050, 1050, 1050)),
    ("13.4", lambda sizes, rank, name: [rank]),
    ("13.4", lambda sizes, rank, name: list(range(sizes[name]))),
)
"""Answers that must not earn a single point."""

"""Wrong answers to exercise 03, each with the mistake that people make."""

import numpy as np

from dpbook.classroom.tasks.judging import Mutant


def last_repeated(order, world, rank):
    return np.pad(order, (0, -len(order) % world), mode="edge")[rank::world]


def dropped(order, world, rank):
    return order[: len(order) // world * world][rank::world]


def unpadded(order, world, rank):
    return order[rank::world]


def padded_once(order, world, rank):
    """With fewer than half as many examples as ranks one repetition is not enough."""
    return np.concatenate([order, order[: -len(order) % world]])[rank::world]


def consecutive(order, world, rank):
    return np.resize(order, -(-len(order) // world) * world).reshape(world, -1)[rank]


def padded_with_zeros(order, world, rank):
    return np.pad(order, (0, -len(order) % world))[rank::world]


def by_sum(n, seed, epoch):
    return np.random.default_rng(seed + epoch).permutation(n)


def by_a_factor(factor):
    return lambda n, seed, epoch: np.random.default_rng(seed * factor + epoch).permutation(n)


def seed_alone(n, seed, epoch):
    return np.random.default_rng(seed).permutation(n)


def each_rank_its_own(n, seed, epoch):
    return np.random.default_rng().permutation(n)


def digits_joined(n, seed, epoch):
    return np.random.default_rng(int(f"{seed}{epoch}")).permutation(n)


def no_order(n, seed, epoch):
    """Never twice the same, and no order of anything."""
    return [seed, epoch]


def with_replacement(n, seed, epoch):
    return np.random.default_rng([seed, epoch]).integers(n, size=n)


def _wait(lengths, batches, first=1):
    steps = [batches(length) for length in lengths]
    fewest = min(steps)
    if fewest == max(steps):
        return None
    waiting = next(rank for rank, own in enumerate(steps) if own > fewest)
    return waiting, fewest + first, steps.index(fewest)


def by_examples(lengths, batch):
    """Unequal numbers of examples taken for unequal numbers of batches."""
    return _wait(lengths, lambda length: length)


def last_batch_forgotten(lengths, batch):
    return _wait(lengths, lambda length: length // batch)


def off_by_one(lengths, batch):
    return _wait(lengths, lambda length: -(-length // batch), first=0)


def _most_and_fewest(waiting, ended):
    """Ranks named by their examples, or by the largest number of batches."""

    def first_wait(lengths, batch):
        batches = [-(-length // batch) for length in lengths]
        return (
            None if len(set(batches)) == 1 else (waiting(lengths, batches), min(batches) + 1, ended(lengths, batches))
        )

    return first_wait


def _lowest_that_waits(lengths, batches):
    return next(rank for rank, own in enumerate(batches) if own > min(batches))


fewest_examples = _most_and_fewest(_lowest_that_waits, lambda lengths, batches: lengths.index(min(lengths)))
most_batches = _most_and_fewest(
    lambda lengths, batches: batches.index(max(batches)), lambda lengths, batches: batches.index(min(batches))
)


def roles_swapped(lengths, batch):
    found = _wait(lengths, lambda length: -(-length // batch))
    return found and found[::-1]


def step_of_the_longest(lengths, batch):
    found = _wait(lengths, lambda length: -(-length // batch))
    return found and (found[0], -(-max(lengths) // batch) + 1, found[2])


def never(lengths, batch):
    return None


MUTANTS = (
    Mutant("03.1", "consecutive parts", consecutive, "sizes that divide"),
    Mutant("03.1", "last example repeated", last_repeated, "padding"),
    Mutant("03.1", "dropped in place of padded", dropped, "padding"),
    Mutant("03.1", "not padded", unpadded, "padding"),
    Mutant("03.1", "padded once only", padded_once, "padding"),
    Mutant("03.1", "padded with zeros", padded_with_zeros, "padding"),
    Mutant("03.2", "not seeded", each_rank_its_own, "the same on every rank"),
    Mutant("03.2", "drawn with replacement", with_replacement, "the same on every rank"),
    Mutant("03.2", "no order at all", no_order, "no two alike"),
    Mutant("03.2", "seed + epoch", by_sum, "no two alike"),
    Mutant("03.2", "seed · 1,000,003 + epoch", by_a_factor(1_000_003), "no two alike"),
    Mutant("03.2", "31 · seed + epoch", by_a_factor(31), "no two alike"),
    Mutant("03.2", "digits of seed and epoch joined", digits_joined, "no two alike"),
    Mutant("03.2", "epoch ignored", seed_alone, "no two alike"),
    Mutant("03.3", "mistakes swapped", ((128, 68), (32, 25)), "four numbers"),
    Mutant("03.3", "1 - 1/N of the data", ((32, 25), (128, 75)), "four numbers"),
    Mutant("03.3", "nothing lost", ((32, 100), (128, 100)), "four numbers"),
    Mutant("03.3", "what is left out", ((32, 75), (128, 32)), "four numbers"),
    Mutant("03.4", "examples in place of batches", by_examples, "nobody waits"),
    Mutant("03.4", "last batch forgotten", last_batch_forgotten, "nobody waits"),
    Mutant("03.4", "off by one", off_by_one, "the rank, the step, the other rank"),
    Mutant("03.4", "roles swapped", roles_swapped, "the rank, the step, the other rank"),
    Mutant("03.4", "the longest rank's step", step_of_the_longest, "the rank, the step, the other rank"),
    Mutant("03.4", "ended with the fewest examples", fewest_examples, "the rank, the step, the other rank"),
    Mutant("03.4", "the rank with most batches waits", most_batches, "the rank, the step, the other rank"),
    Mutant("03.4", "never", never, "the rank, the step, the other rank"),
)

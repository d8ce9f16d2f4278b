"""Wrong answers to exercise 03, each with the mistake that people make."""

import numpy as np

from tests.classroom.mutants.edits import Mutant, edit


def three_swaps(n, seed, epoch):
    rng, order = np.random.default_rng([seed, epoch]), np.arange(n)
    for _ in range(3):
        pair = rng.choice(n, 2, replace=False)
        order[pair] = order[pair[::-1]]
    return order


def shuffled_end(n, seed, epoch):
    order = np.arange(n)
    np.random.default_rng([seed, epoch]).shuffle(order[-20:])
    return order


def shuffled_blocks(n, seed, epoch):
    rng = np.random.default_rng([seed, epoch])
    return np.concatenate([first + rng.permutation(min(8, n - first)) for first in range(0, n, 8)])


PADDED, SEEDS, STEPS, ENDED = (
    "np.resize(order, each * world)",
    "[seed, epoch]",
    "-(-length // batch)",
    "steps.index(fewest)",
)
SAME, TWO = "the same on every rank", "no two alike"
NOBODY, THREE = "nobody waits", "the rank, the step, the other rank"

MUTANTS = (
    edit("03.1", "consecutive parts", {"[rank::world]": ".reshape(world, -1)[rank]"}, "sizes that divide"),
    edit("03.1", "last example repeated", {PADDED: 'np.pad(order, (0, -len(order) % world), mode="edge")'}, "padding"),
    edit("03.1", "dropped in place of padded", {PADDED: "order[: len(order) // world * world]"}, "padding"),
    edit("03.1", "not padded", {PADDED: "order"}, "padding"),
    edit("03.1", "through floats", {PADDED: f"{PADDED}.astype(float)"}, "sizes that divide"),
    edit("03.1", "padded once only", {PADDED: "np.concatenate([order, order[: -len(order) % world]])"}, "padding"),
    edit("03.1", "padded with zeros", {PADDED: "np.pad(order, (0, -len(order) % world))"}, "padding"),
    edit("03.2", "not seeded", {SEEDS: ""}, SAME),
    edit("03.2", "drawn with replacement", {"permutation(n)": "integers(n, size=n)"}, SAME),
    edit("03.2", "the hash of a string", {SEEDS: 'abs(hash(f"{seed} {epoch}"))'}, SAME),
    edit("03.2", "the number of the process", {SEEDS: '[seed, epoch, __import__("os").getpid()]'}, SAME),
    Mutant("03.2", "three swaps", three_swaps, SAME),
    Mutant("03.2", "a shuffled end", shuffled_end, SAME),
    Mutant("03.2", "shuffled blocks", shuffled_blocks, SAME),
    Mutant(
        "03.2",
        "turned",
        lambda n, seed, epoch: np.roll(range(n), np.random.default_rng([seed, epoch]).integers(n)),
        SAME,
    ),
    edit("03.2", "no order at all", {"np.random.default_rng([seed, epoch]).permutation(n)": SEEDS}, TWO),
    edit("03.2", "seed + epoch", {SEEDS: "seed + epoch"}, TWO),
    edit("03.2", "seed + 1,000,003 · epoch", {SEEDS: "seed + 1_000_003 * epoch"}, TWO),
    edit("03.2", "31 · seed + 17 · epoch", {SEEDS: "31 * seed + 17 * epoch"}, TWO),
    edit("03.2", "two large primes", {SEEDS: "104_729 * seed + 7919 * epoch"}, TWO),
    edit("03.2", "31 · seed + epoch", {SEEDS: "31 * seed + epoch"}, TWO),
    edit("03.2", "digits of seed and epoch joined", {SEEDS: 'int(f"{seed}{epoch}")'}, TWO),
    edit("03.2", "epoch ignored", {SEEDS: "seed"}, TWO),
    Mutant("03.3", "mistakes swapped", ((128, 68), (32, 25)), "four numbers"),
    Mutant("03.3", "1 - 1/N of the data", ((32, 25), (128, 75)), "four numbers"),
    Mutant("03.3", "nothing lost", ((32, 100), (128, 100)), "four numbers"),
    Mutant("03.3", "what is left out", ((32, 75), (128, 32)), "four numbers"),
    edit("03.4", "examples in place of batches", {STEPS: "length"}, NOBODY),
    edit("03.4", "last batch forgotten", {STEPS: "length // batch"}, NOBODY),
    edit("03.4", "off by one", {"fewest + 1": "fewest"}, THREE),
    edit("03.4", "roles swapped", {f"(waiting[0], fewest + 1, {ENDED})": f"({ENDED}, fewest + 1, waiting[0])"}, THREE),
    edit("03.4", "the longest rank's step", {"fewest + 1": "max(steps) + 1"}, THREE),
    edit("03.4", "ended with the fewest examples", {ENDED: "lengths.index(min(lengths))"}, THREE),
    edit("03.4", "the rank with most batches waits", {"(waiting[0]": "(steps.index(max(steps))"}, THREE),
    Mutant("03.4", "never", lambda lengths, batch: None, THREE),
)

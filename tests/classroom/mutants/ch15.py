"""Wrong answers to exercise 15, each with the mistake that people make."""

import numpy as np

from dpbook.classroom.tasks.judging import Mutant

# 15.1


def most(values):
    return max(values, key=values.count)


def odd(values):
    right = most(values)
    return next((rank for rank, value in enumerate(values) if value != right), None)


def beside_rank_0(values):
    return next((rank for rank, value in enumerate(values) if value != values[0]), None)


def own_nan(records):
    return next((r for r, each in enumerate(records) if any(np.isnan(a).any() for a in each["own"].values())), None)


def applied_nan(records):
    return next(
        (r for r, each in enumerate(records) if any(np.isnan(a).any() for a in each["gradient"].values())), None
    )


def same_order(records, earlier):
    return records[0]["examples"] == earlier[0]["examples"]


def by_tokens(counts):
    return [count / sum(counts) for count in counts]


def by_ranks(counts):
    return [1 / len(counts)] * len(counts)


def near(records, shares, relative=1e-4):
    def fits(name):
        guess = sum(share * each["own"][name] for share, each in zip(shares, records, strict=True) if share)
        return np.abs(guess - records[0]["gradient"][name]).max() <= relative * np.abs(guess).max()

    return all(fits(name) for name in records[0]["gradient"])


def explained(records, right, relative):
    """Name of the rule that was applied: "" if it is the ``right`` mean."""
    world, shares = len(records), right([each["count"] for each in records])
    guesses = {("", None): shares, ("summed_gradients", None): [world * s for s in shares]}
    guesses["divided_twice", None] = [s / world for s in shares]
    guesses["padding", None] = by_ranks(shares)
    for rank in range(world):
        guesses["left_out", rank] = [s * (r != rank) for r, s in enumerate(shares)]
    return next((guess for guess, tried in guesses.items() if near(records, tried, relative)), ("padding", None))


def _diagnose(
    *, odd=odd, nan=own_nan, order=same_order, right=by_tokens, relative=1e-4, backwards=False, updates=None,
):  # fmt: skip
    """The reference with one thing wrong."""

    def tests(records):
        def odd_rank(key):
            return odd([repr(each[key]) for each in records])

        yield "different_starts", odd_rank("before")
        read = [each["examples"] for each in records]
        yield "no_sampler", next((r for r, mine in enumerate(read) if mine in read[:r]), None)
        yield "missing_value", nan(records)
        applied = [{n: a.tobytes() for n, a in each["gradient"].items()} for each in records]
        yield "past_the_wrapper", odd([repr(each) for each in applied])
        yield "plateau", odd_rank("rate")
        yield "lonely_scaler", odd_rank("after")

    def diagnose(ranks):
        updates_of = list(zip(*ranks, strict=True))[:updates]
        per_epoch = sum(each["epoch"] == 0 for each in ranks[0])
        for number, records in enumerate(updates_of, 1):
            found = [(cause, rank) for cause, rank in tests(records) if rank is not None]
            if found:
                cause, rank = found[-1 if backwards else 0]
                return cause, rank, number
            if records[0]["epoch"] and order(records, updates_of[number - 1 - per_epoch]):
                return "no_set_epoch", None, number
            cause, rank = explained(records, right, relative)
            if cause:
                return cause, rank, number
        return "", None, None

    return diagnose


def ranks_alone(ranks):
    """Compares what ranks should have in common, and knows no big batch."""
    cause, rank, update = _diagnose()(ranks)
    return (cause, rank, update) if rank is not None and cause != "left_out" else ("", None, None)


# 15.2


def starts_alike(rank):
    return np.random.default_rng(0).normal(size=rank.size)


def own_start(rank):
    return np.random.default_rng(rank.number).normal(size=rank.size)


def every_nth(order, rank, share):
    return order[rank.number :: rank.world]


def shifted_by_one(order, rank, share):
    return order[rank.number : rank.number + share]


def mean_of_all(rank, total, count):
    mean = rank.all_reduce(total) / rank.all_reduce(count)
    return mean * min(1, rank.limit / np.linalg.norm(mean))


def mean_of_means(rank, total, count):
    mean = rank.all_reduce(total / count) / rank.world
    return mean * min(1, rank.limit / np.linalg.norm(mean))


def own_count(rank, total, count):
    mean = rank.all_reduce(total) / (rank.world * count)
    return mean * min(1, rank.limit / np.linalg.norm(mean))


def clipped_before(rank, total, count):
    """Each rank's share of the mean is clipped."""
    mine = total / rank.all_reduce(count)
    return rank.all_reduce(mine * min(1, rank.limit / np.linalg.norm(mine)))


def each_clips_its_mean(rank, total, count):
    mean = total / count
    return rank.all_reduce(mean * min(1, rank.limit / np.linalg.norm(mean))) / rank.world


def norms_summed(rank, total, count):
    mean = rank.all_reduce(total) / (tokens := rank.all_reduce(count))
    return mean * min(1, rank.limit / rank.all_reduce(np.linalg.norm(total / tokens)))


def _mended(start=starts_alike, seed=lambda rank, epoch: epoch, share_of=every_nth, gradient=mean_of_all):
    def mended(rank):
        weights = start(rank)
        share, history = rank.examples // rank.world, [weights]
        for epoch in range(rank.epochs):
            order = np.random.default_rng(seed(rank, epoch)).permutation(rank.examples)
            mine = share_of(order, rank, share)
            for first in range(0, share, rank.batch):
                total, count = rank.gradient(weights, mine[first : first + rank.batch])
                weights = weights - rank.rate * gradient(rank, total, count)
                history.append(weights)
        return history

    return mended


def does_nothing(rank):
    return [np.zeros(rank.size)] * (1 + rank.epochs * -(-rank.examples // rank.world // rank.batch))


# 15.3


def bits(array):
    return array.tobytes()


def _first_difference(value=bits, equal=lambda a, b: a == b, odd=odd, last=False, ranks_seen=None):
    def first_difference(ranks):
        seen = ranks[:ranks_seen]
        updates = range(len(seen[0]))
        for update in updates[-1:] if last else updates:
            for name in seen[0][update]:
                values = [value(states[update][name]) for states in seen]
                if not all(equal(each, values[0]) for each in values):
                    return update, name, odd(values)
        return None

    return first_difference


def never(ranks):
    return None


def always(ranks):
    return 0, next(iter(ranks[0][0])), len(ranks) - 1


def not_the_first(values):
    return next((rank for rank, value in enumerate(values) if repr(value) != repr(values[0])), 0)


ONE, ALL = "one rank does what others do not", "all ranks agree, and still"
EQUAL, ONCE = "replicas start and stay equal", "every example once in an epoch, in a new order"
BIG, CLIPPED = "the gradient of the big batch", "clipped as the big batch would be"
FIRES, FIRST = "it fires where replicas differ, and nowhere else", "the first update, tensor and rank"
MUTANTS = (
    Mutant("15.1", "who differs from rank 0 is odd", _diagnose(odd=beside_rank_0), ONE),
    Mutant("15.1", "the last difference of an update", _diagnose(backwards=True), ONE),
    Mutant("15.1", "NaN looked for in what is applied", _diagnose(nan=applied_nan), ONE),
    Mutant("15.1", "the first update alone", _diagnose(updates=1), ONE),
    Mutant("15.1", "ranks compared, and nothing else", ranks_alone, ALL),
    Mutant("15.1", "the mean of means is held to be right", _diagnose(right=by_ranks), ALL),
    Mutant("15.1", "the mean demanded bit by bit", _diagnose(relative=0), ALL),
    Mutant("15.1", "epochs are not compared", _diagnose(order=lambda records, earlier: False), ALL),
    Mutant("15.2", "replicas start by their rank", _mended(start=own_start), EQUAL),
    Mutant("15.2", "shares overlap", _mended(share_of=shifted_by_one), ONCE),
    Mutant("15.2", "one order for all epochs", _mended(seed=lambda rank, epoch: 0), ONCE),
    Mutant("15.2", "each rank has an order of its own", _mended(seed=lambda rank, epoch: [epoch, rank.number]), ONCE),
    Mutant("15.2", "a mean of means", _mended(gradient=mean_of_means), BIG),
    Mutant("15.2", "divided by a rank's own tokens", _mended(gradient=own_count), BIG),
    Mutant("15.2", "clipped before it is averaged", _mended(gradient=clipped_before), CLIPPED),
    Mutant("15.2", "clipped by the sum of the norms", _mended(gradient=norms_summed), CLIPPED),
    Mutant("15.3", "it never fires", never, FIRES),
    Mutant("15.3", "it always fires", always, FIRES),
    Mutant("15.3", "ranks 0 and 1 alone", _first_difference(ranks_seen=2), FIRES),
    Mutant(
        "15.3", "equal within a tolerance",
        _first_difference(value=lambda a: a, equal=lambda a, b: np.allclose(a, b, equal_nan=True), odd=not_the_first),
        FIRES,
    ),
    Mutant("15.3", "a NaN is not itself", _first_difference(lambda a: a, np.array_equal, not_the_first), FIRES),
    Mutant("15.3", "the last update alone", _first_difference(last=True), FIRES),
    Mutant("15.3", "sums are compared", _first_difference(lambda a: repr(np.nansum(a.astype(float)))), FIRES),
    Mutant("15.3", "who differs from rank 0 is blamed", _first_difference(odd=beside_rank_0), FIRST),
)  # fmt: skip

WORTHLESS = (
    ("15.1", lambda ranks: ("", None, None)),
    ("15.1", lambda ranks: ("padding", None, 1)),
    ("15.2", does_nothing),
    ("15.2", _mended(own_start, lambda rank, epoch: 0, shifted_by_one, each_clips_its_mean)),  # as it is given
    ("15.3", never),
    ("15.3", always),
)
"""Answers that must not earn a single point."""

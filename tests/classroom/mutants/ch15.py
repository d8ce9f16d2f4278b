"""Wrong answers to exercise 15, each with the mistake that people make."""

import numpy as np

from tests.classroom.mutants.edits import Mutant, edit, edited

STARTS = 'rank = odd([record["before"] for record in records])'
LAST_FIRST = f"""\
for cause, key in (("lonely_scaler", "after"), ("plateau", "rate")):
            rank = odd([record[key] for record in records])
            if rank is not None:
                return cause, rank, number
        {STARTS}"""
ANOTHER_EPOCH, EXPLAINED = "if number > per_epoch and", "if not fits(share, records):"
COUNTS = 'np.array([record["count"] for record in records], float)'
SHARE, ORDER = "order[rank.number * share : (rank.number + 1) * share]", "default_rng(epoch)"
MEAN, CLIPPED = (
    "rank.all_reduce(total) / rank.all_reduce(count)",
    "gradient *= min(1, rank.limit / np.linalg.norm(gradient))",
)
CLIPPED_BEFORE = {
    MEAN: "total / rank.all_reduce(count)",
    CLIPPED: f"{CLIPPED}\n            gradient = rank.all_reduce(gradient)",
}
NORMS_SUMMED = {
    MEAN: "rank.all_reduce(total) / (tokens := rank.all_reduce(count))",
    "np.linalg.norm(gradient)": "rank.all_reduce(np.linalg.norm(total / tokens))",
}
AS_GIVEN = {
    "default_rng(0)": "default_rng(rank.number)",
    SHARE: "order[rank.number : rank.number + share]",
    ORDER: "default_rng(0)",
    MEAN: "total / count",
    CLIPPED: f"{CLIPPED}\n            gradient = rank.all_reduce(gradient) / rank.world",
}
BITS, MOST, DIFFERS = "state[tensor].tobytes()", "max(bits, key=bits.count)", "if mine != right:"
WITHIN = {BITS: "state[tensor]", MOST: "bits[0]", DIFFERS: "if not np.allclose(mine, right, equal_nan=True):"}
ONE_NAN = {BITS: "np.where(state[tensor] == state[tensor], state[tensor], state[tensor].dtype.type(np.nan)).tobytes()"}
BY_VALUE = {BITS: "state[tensor]", MOST: "bits[0]", DIFFERS: "if not np.array_equal(mine, right):"}


def does_nothing(rank):
    return [np.zeros(rank.size)] * (1 + rank.epochs * -(-rank.examples // rank.world // rank.batch))


def never(ranks):
    return None


def always(ranks):
    return 0, next(iter(ranks[0][0])), len(ranks) - 1


ONE, ALL = "one rank does what others do not", "all ranks agree, and still"
EQUAL, ONCE = "replicas start and stay equal", "every example once in an epoch, in a new order"
BIG, AS_BIG = "the gradient of the big batch", "clipped as the big batch would be"
FIRES, FIRST = "it fires where replicas differ, and nowhere else", "the first update, tensor and rank"
MUTANTS = (
    edit("15.1", "who differs from rank 0 is odd", {"max(values, key=values.count)": "values[0]"}, ONE),
    edit("15.1", "the last difference of an update", {STARTS: LAST_FIRST}, ONE),
    edit("15.1", "NaN looked for in what is applied", {'record["own"].values()': 'record["gradient"].values()'}, ONE),
    edit("15.1", "the first update alone", {"list(zip(*ranks))": "list(zip(*ranks))[:1]"}, ONE),
    edit("15.1", "ranks compared, and nothing else", {ANOTHER_EPOCH: "if False and", EXPLAINED: "if False:"}, ALL),
    edit("15.1", "the mean of means is held to be right", {COUNTS: "np.ones(world)"}, ALL),
    edit("15.1", "the mean demanded bit by bit", {"> 1e-4 *": "> 0 *"}, ALL),
    edit("15.1", "epochs are not compared", {ANOTHER_EPOCH: "if False and"}, ALL),
    edit("15.2", "replicas start by their rank", {"default_rng(0)": "default_rng(rank.number)"}, EQUAL),
    edit("15.2", "shares overlap", {SHARE: "order[rank.number : rank.number + share]"}, ONCE),
    edit("15.2", "one order for all epochs", {ORDER: "default_rng(0)"}, ONCE),
    edit("15.2", "two orders in turns", {ORDER: "default_rng(epoch % 2)"}, ONCE),
    edit("15.2", "each rank has an order of its own", {ORDER: "default_rng([epoch, rank.number])"}, ONCE),
    edit("15.2", "a mean of means", {MEAN: "rank.all_reduce(total / count) / rank.world"}, BIG),
    edit("15.2", "divided by a rank's own tokens", {MEAN: "rank.all_reduce(total) / (rank.world * count)"}, BIG),
    edit("15.2", "clipped before it is averaged", CLIPPED_BEFORE, AS_BIG),
    edit("15.2", "clipped by the sum of the norms", NORMS_SUMMED, AS_BIG),
    Mutant("15.3", "it never fires", never, FIRES),
    Mutant("15.3", "it always fires", always, FIRES),
    edit("15.3", "ranks 0 and 1 alone", {"zip(*ranks)": "zip(*ranks[:2])"}, FIRES),
    edit("15.3", "equal within a tolerance", WITHIN, FIRES),
    edit("15.3", "a NaN is not itself", BY_VALUE, FIRES),
    edit("15.3", "all NaNs are equal", ONE_NAN, FIRST),
    edit("15.3", "the last update alone", {"enumerate(zip(*ranks))": "[*enumerate(zip(*ranks))][-1:]"}, FIRES),
    edit("15.3", "sums are compared", {BITS: "repr(np.nansum(state[tensor].astype(float)))"}, FIRES),
    edit("15.3", "who differs from rank 0 is blamed", {MOST: "bits[0]"}, FIRST),
)

WORTHLESS = (
    ("15.1", lambda ranks: ("", None, None)),
    ("15.1", lambda ranks: ("padding", None, 1)),
    ("15.2", does_nothing),
    ("15.2", edited("15.2", AS_GIVEN)),
    ("15.3", never),
    ("15.3", always),
)
"""Answers that must not earn a single point."""

"""Wrong answers to exercise 01, each with the mistake that people make."""

from tests.classroom.mutants.edits import Mutant, edit

STEP, IDENTICAL, OWN = "the big batch's step", "identical replicas", "own shard, own parameters"
MEAN, SPLIT = "np.mean(local, axis=0)", "np.split(x, world), np.split(y, world)"
DRIFT, GAP = "(params.max(axis=0) - params.min(axis=0)).max()", "np.abs(averaged - whole).max()"
ANY_TWO, LARGEST = "any two replicas", "the largest gap"
FIRST_RUNS, LAST_RUNS = "the first three runs", "the last two runs"

MUTANTS = (
    Mutant("01.1", "sum in place of average", (-182, -144), "three and three"),
    Mutant("01.1", "sign", (91, 72), "three and three"),
    Mutant("01.1", "unequal shards do not matter", (-91, -91), "two and four"),
    Mutant("01.1", "half of the derivative", (-45.5, -36), "two and four"),
    edit("01.2", "no division", {MEAN: "np.sum(local, axis=0)"}, STEP),
    edit("01.2", "no exchange", {MEAN: "np.stack(local)"}, STEP),
    edit(
        "01.2",
        "last rank ignores it",
        {MEAN: "np.stack([np.mean(local, axis=0)] * (world - 1) + local[-1:])"},
        IDENTICAL,
    ),
    edit(
        "01.2",
        "own order of summation",
        {MEAN: "np.stack([sum(np.roll(local, -r, axis=0)) for r in range(world)]) / world"},
        IDENTICAL,
    ),
    edit("01.2", "everyone reads all", {SPLIT: "[x] * world, [y] * world"}, OWN),
    edit("01.2", "rank 0's parameters", {"gradient(own, *shard)": "gradient(params[0], *shard)"}, OWN),
    edit(
        "01.2",
        "every world-th example",
        {SPLIT: "[x[r::world] for r in range(world)], [y[r::world] for r in range(world)]"},
        OWN,
    ),
    edit(
        "01.2",
        "the parameters averaged too",
        {f"params - lr * {MEAN}": "np.tile((params - lr * np.stack(local)).mean(axis=0), (world, 1))"},
        OWN,
    ),
    edit("01.3", "standard deviation", {DRIFT: "params.std(axis=0).max()"}, ANY_TWO),
    edit("01.3", "against the mean", {DRIFT: "np.abs(params - params.mean(axis=0)).max()"}, ANY_TWO),
    edit("01.3", "against rank 0 only", {DRIFT: "np.abs(params - params[0]).max()"}, ANY_TWO),
    edit(
        "01.3",
        "Euclidean distance",
        {DRIFT: "max(np.linalg.norm(one - other) for one in params for other in params)"},
        ANY_TWO,
    ),
    edit("01.3", "never 0", {DRIFT: f"{DRIFT} + 1e-16"}, "no drift"),
    edit("01.3", "signed gap", {GAP: "(averaged - whole).max()"}, LARGEST),
    edit("01.3", "gap of rank 0", {GAP: "np.abs(averaged[0] - whole).max()"}, LARGEST),
    edit("01.3", "errors cancel", {GAP: "np.abs((averaged - whole).sum(axis=0)).max()"}, LARGEST),
    edit(
        "01.4", "drift shows a missing division", {'size is missing": "gap"': 'size is missing": "drift"'}, FIRST_RUNS
    ),
    edit("01.4", "drift shows a repeated shard", {'the first shard": "gap"': 'the first shard": "both"'}, LAST_RUNS),
    edit("01.4", "rounding counts", {'"no mistake": "neither"': '"no mistake": "gap"'}, FIRST_RUNS),
    edit("01.4", "only drift", {'ignores the average": "both"': 'ignores the average": "drift"'}, FIRST_RUNS),
    edit("01.4", "the gap forgives a start", {'other parameters": "both"': 'other parameters": "drift"'}, LAST_RUNS),
)

WORTHLESS = (
    ("01.2", lambda params, gradient, x, y, lr: None),
    ("01.2", lambda params, gradient, x, y, lr: params),
)
"""Answers that must not earn a single point."""

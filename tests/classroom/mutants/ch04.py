"""Wrong answers to exercise 04, each with the mistake that people make."""

from tests.classroom.mutants.edits import Mutant, edit

RIGHT = (1.2, 6, 2, 1)
TOKENS, TOTAL = "tokens[:, group]", "tokens[:, group].sum()"
FACTOR = f"world * {TOKENS} / {TOTAL}"
SIGNAL, RATIO = "(B * a - b * s) / (B - b)", "return noise / signal"
EACH_STEP = {"sum(axis=2).mean()": "sum(axis=2).mean(axis=1)", "sum(axis=1).mean()": "sum(axis=1)"}
"""Two sums for each step, and not their means over all steps."""
ONE, SEVERAL, STEP, STEPS = "one rank", "several ranks", "one step", "many steps"

MUTANTS = (
    Mutant("04.1", "what remained, alone", (0.2, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "as if 6 were averaged", (1, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "examples in place of micro-batches", (1.4, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "N for Adam", (1.2, 6, 2, 6), "three optimizers"),
    Mutant("04.1", "clipping changes nothing", (1.2, 6, 6, 1), "three optimizers"),
    Mutant("04.1", "clipping hides it", (1.2, 6, 1, 1), "three optimizers"),
    edit("04.2", "mean of micro-batch means", {FACTOR: "1 / accumulation"}, ONE),
    edit("04.2", "for a loss that is a sum", {FACTOR: f"world / {TOTAL}"}, ONE),
    edit("04.2", "all tokens of the epoch", {TOTAL: "tokens.sum()"}, ONE),
    edit("04.2", "leftover as if it were full", {FACTOR: f"{FACTOR} * {TOKENS}.shape[1] / accumulation"}, ONE),
    edit("04.2", "own tokens", {FACTOR: f"{TOKENS} / {TOKENS}.sum(axis=1, keepdims=True)"}, SEVERAL),
    edit("04.2", "N left out", {FACTOR: f"{TOKENS} / {TOTAL}"}, SEVERAL),
    edit("04.3", "b and B swapped", {SIGNAL: "(b * a - B * s) / (b - B)"}, STEP),
    edit("04.3", "signal not corrected for noise", {SIGNAL: "a"}, STEP),
    edit(
        "04.3", "signal not below 0", {**EACH_STEP, RATIO: "return sum(noise) / sum(np.maximum(signal, 1e-12))"}, STEP
    ),
    edit("04.3", "local batch forgotten", {"b, B = local_batch": "local_batch = 1\n    b, B = local_batch"}, STEP),
    edit("04.3", "mean of ratios", {**EACH_STEP, RATIO: "return np.mean(noise / signal)"}, STEPS),
    edit("04.3", "last step only", {"b, B = local_batch": "steps = steps[-1:]\n    b, B = local_batch"}, STEPS),
)

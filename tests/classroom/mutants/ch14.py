"""Wrong answers to exercise 14, each with the mistake that people make."""

from dpbook.book import ch14
from tests.classroom.mutants.edits import Mutant, edit, named


def simulated(layers, groups):
    step = ch14.cut_step(layers, groups)
    return step.timeline.exposed(), step.memory.peak


def each(layers, limit):
    return [[k] for k in range(len(layers))]


def all_in_one(layers, limit):
    return [list(range(len(layers)))]


def equal_numbers(layers, limit):
    """Best plan among those that fit, with equal numbers of layers in each unit."""
    count = len(layers)
    tried = [[list(range(i, min(i + m, count))) for i in range(0, count, m)] for m in range(1, count + 1)]
    return min((simulated(layers, g)[0], g) for g in tried if simulated(layers, g)[1] <= limit or len(g) == count)[1]


GATHERS = "(0, 1, 1, micro_batches * (1 if keep else 2))"
SCATTERS = "micro_batches if stage >= 2 else 1"
GRADIENTS_AS_WEIGHTS = {
    "gathers * weight + scatters * gradient": "gathers * gradient + scatters * weight",
    "nbytes += gradient": "nbytes += weight",
}
ARRIVED, FREED = "row = self.gathers[k].wait()", "self.gathers.pop(k).free()"
FREED_TOO_EARLY = {ARRIVED: f"{ARRIVED}\n        self.gathers[k].free()", FREED: "self.gathers.pop(k)"}
"""When the next one is on its way, this one has come, and seems to be done with."""
GATHERED_AHEAD = f"{ARRIVED}\n        if following in self.gathers:\n            self.gathers[following].wait()"
ROW, EARLIER = "self.padded(gradient, np.float32)", "self.reductions[k + 1].wait()"
ONE_ROW = {
    "self.reductions = {}, {}": "self.reductions = {}, {}\n        self.row = np.zeros(100, np.float32)",
    f"self.reductions[k] = self.wire.reduce_scatter({ROW})": f"""\
padded = {ROW}
        self.row[: padded.size] = padded
        self.reductions[k] = self.wire.reduce_scatter(self.row[: padded.size])""",
}
"""One row for all gradients: the next one is written while the last one is on its way."""
SUMMED, CLIPPED = "squares = sum(", "piece *= piece.dtype.type(limit / norm)"
IN_HALF = {SUMMED: f'with np.errstate(over="ignore"):\n        {SUMMED}', "piece, dtype=float": "piece"}
EACH_ALONE = {
    "if norm > limit:": "if True:",
    CLIPPED: "piece *= piece.dtype.type(min(1, limit / max(np.linalg.norm(piece.astype(float)), 1e-9)))",
}
COUNTED = "as they are counted"
WHOLE, IN_TIME, REDUCED = "whole weights", "gathered in time, freed after use", "gradients reduced"
FITS, BEST = "fits, and hides", "near the best"
NORM, BELOW = "clipped by the whole norm", "left as it is below the limit"
EVEN, UNEVEN = "rows that divide", "rows that do not, and more ranks than rows"
IN_FILE = 'file["tensors"][name][kind]'
JOINED, CHUNK = "for file in files])", "-(-len(whole) // world)"
ROWS = "return whole[rank * chunk : (rank + 1) * chunk]"
IN_ORDER = "for name, arrays in wholes.items()},"
STEP, BOTH = '"step": files[0]["step"],', "{kind: rows(a, rank) for kind, a in arrays.items()}"
MUTANTS = (
    edit("14.1", "stage 2 reduces once per step", {SCATTERS: "micro_batches if stage >= 3 else 1"}, COUNTED),
    edit("14.1", "one gather in stage 3", {GATHERS: "(0, 1, 1, micro_batches)"}, COUNTED),
    edit("14.1", "a gather per micro-batch in stage 2", {GATHERS: "(0, 1, micro_batches, 2 * micro_batches)"}, COUNTED),
    edit("14.1", "weights gathered once per step", {GATHERS: "(0, 1, 1, 1 if keep else 2)"}, COUNTED),
    edit(
        "14.1",
        "an all-reduce in every micro-batch",
        {SCATTERS: "micro_batches", "nbytes += gradient": "nbytes += scatters * gradient"},
        COUNTED,
    ),
    edit("14.1", "all of the buffer", {"(ranks - 1) / ranks": "(ranks > 1)"}, COUNTED),
    edit("14.1", "gradients of the weights' size", GRADIENTS_AS_WEIGHTS, COUNTED),
    edit("14.2", "never frees", {FREED: "self.gathers.pop(k)"}, IN_TIME),
    edit("14.2", "frees too early", FREED_TOO_EARLY, WHOLE),
    edit("14.2", "reduces in half precision", {ROW: "self.padded(gradient, np.float16)"}, REDUCED),
    edit("14.2", "waits for what it gathers ahead", {ARRIVED: GATHERED_AHEAD}, IN_TIME),
    edit("14.2", "waits for a sum at once", {EARLIER: f"{EARLIER}\n        self.reductions[k].wait()"}, REDUCED),
    edit("14.2", "waits for all sums at the end", {EARLIER: "pass"}, REDUCED),
    edit(
        "14.2",
        "a stale prefetch",
        {"def gather(self, k):": "def gather(self, k):\n        k %= len(self.shards)"},
        WHOLE,
    ),
    edit(
        "14.2",
        "the mean in double precision",
        {"/ self.wire.world for k": "/ np.float64(self.wire.world) for k"},
        REDUCED,
    ),
    edit("14.2", "a row written before the wait", ONE_ROW, REDUCED),
    Mutant("14.3", "a unit per layer", each, FITS),
    Mutant("14.3", "one unit", all_in_one, FITS),
    edit("14.3", "without the limit", {"step.memory.peak <= limit and ": ""}, FITS),
    Mutant("14.3", "equal numbers of layers", equal_numbers, BEST),
    edit("14.3", "as few units as fit", {"step.timeline.exposed()": "len(groups)"}, BEST),
    edit("14.4", "its own norm", {"all_reduce(squares)": "squares"}, NORM),
    edit("14.4", "norms added up", {"math.sqrt(all_reduce(squares))": "all_reduce(math.sqrt(squares))"}, NORM),
    edit("14.4", "copies counted again", {".sum() / n": ".sum()"}, NORM),
    edit("14.4", "squares in half precision", IN_HALF, NORM),
    edit(
        "14.4",
        "a call per piece",
        {SUMMED: "squares = list(", "all_reduce(squares)": "sum(map(all_reduce, squares))"},
        NORM,
    ),
    edit(
        "14.4",
        "a rank without numbers stays away",
        {SUMMED: f"if not sum(map(len, pieces)):\n        return 0.0\n    {SUMMED}"},
        NORM,
    ),
    edit("14.4", "each piece clipped alone", EACH_ALONE, NORM),
    edit(
        "14.4",
        "other arrays in the list",
        {SUMMED: f"pieces[:] = [piece.copy() for piece in pieces]\n    {SUMMED}"},
        NORM,
    ),
    edit(
        "14.4",
        "divided by a norm of zero",
        {"if norm > limit:": "factor = min(1, limit / norm)\n    if factor < 1:", "(limit / norm)": "(factor)"},
        BELOW,
    ),
    edit("14.4", "raised to the limit", {"if norm > limit:": "if True:"}, BELOW),
    edit("14.5", "in the order of the last", {JOINED: "for file in files[::-1]])"}, EVEN),
    edit("14.5", "added to zeros", {IN_FILE: f"{IN_FILE} + np.zeros((), arrays[kind].dtype)"}, EVEN),
    edit("14.5", "a step of 0", {STEP: '"step": 0,'}, EVEN),
    edit(
        "14.5",
        "new moments",
        {BOTH: '{kind: rows(a if kind == "weight" else 0 * a, rank) for kind, a in arrays.items()}'},
        EVEN,
    ),
    edit(
        "14.5",
        "whole moments on every rank",
        {BOTH: '{kind: rows(a, rank) if kind == "weight" else a for kind, a in arrays.items()}'},
        EVEN,
    ),
    edit("14.5", "in float32", {ROWS: f"{ROWS}.astype(np.float32)"}, EVEN),
    edit("14.5", "rows dealt in turn", {ROWS: "return whole[rank::world]"}, EVEN),
    edit("14.5", "numpy's uneven parts", {ROWS: "return np.array_split(whole, world)[rank]"}, UNEVEN),
    edit("14.5", "rounded down", {CHUNK: "len(whole) // world"}, UNEVEN),
    edit(
        "14.5",
        "the rest on the last rank",
        {
            CHUNK: "len(whole) // world",
            ROWS: "return whole[rank * chunk : (rank + 1) * chunk if rank < world - 1 else None]",
        },
        UNEVEN,
    ),
    edit(
        "14.5",
        "padded",
        {ROWS: "return np.resize(whole, (chunk * world, *whole.shape[1:]))[rank * chunk : (rank + 1) * chunk]"},
        UNEVEN,
    ),
    edit(
        "14.5",
        "empty shards left out",
        {IN_ORDER: f'{IN_ORDER[:-2]} if len(rows(arrays["weight"], rank))}},'},
        UNEVEN,
    ),
)

WORTHLESS = (
    ("14.1", lambda stage, parameters, ranks, *others: 2 * parameters * (ranks - 1) / ranks),
    ("14.3", each),
    ("14.3", all_in_one),
    ("14.4", lambda pieces, copies, limit, all_reduce: 0.0),
    *named(MUTANTS, "14.4", "its own norm"),
    ("14.5", lambda files, world: files),
    ("14.5", lambda files, world: [files[0]] * world),
)
"""Answers that must not earn a single point."""

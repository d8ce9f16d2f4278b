"""Wrong answers to exercise 13, each with the mistake that people make."""

from tests.classroom.mutants.edits import Mutant, edit, edited, named

ONE_EARLIER = {f"stage >= {stage}": f"stage >= {stage - 1}" for stage in (1, 2, 3)}
WEIGHTS_FIRST = {
    "gradients / (world if stage >= 2": "gradients / (world if stage >= 3",
    "weights / (world if stage >= 3": "weights / (world if stage >= 2",
}
STEP, WORLDS = "forward + max(backward, ring)", "min((world for world in sizes if will_do(world)), default=None)"
LESS = {'<= run["days"]': '< run["days"]', '<= gpu["memory"]': '< gpu["memory"]', '>= run["eff': '> run["eff'}
FIRST, STRIDE = "first = rank - rank // stride % sizes[name] * stride", "names[names.index(name) + 1 :]"
MEMBERS = "[first + k * stride for k in range(sizes[name])]"
SAME = "[r for r in range(prod(sizes.values())) if r // stride % sizes[name] == rank // stride % sizes[name]]"
"""Ranks that have the same coordinate, instead of those that differ in it alone."""

STAGE, TIME, LIMITS, WALLS, GROUP = (
    "the first stage that fits",
    "in time, and in memory",
    "whole sequences, and efficient",
    "four walls",
    "any mesh, any rank",
)

MUTANTS = (
    edit("13.1", "one stage too early", ONE_EARLIER, STAGE),
    edit("13.1", "weights before gradients", WEIGHTS_FIRST, STAGE),
    edit("13.1", "frozen parameters have gradients", {"* trained": "* parameters"}, STAGE),
    edit(
        "13.1",
        "activations sharded",
        {"kept + activations": "kept + activations / (world if stage == 3 else 1)"},
        STAGE,
    ),
    edit("13.1", "stage 3 if nothing fits", {"return None": "return 3"}, STAGE),
    edit(
        "13.1",
        "always 16 bytes",
        {"weights, gradients, optimizer =": "recipe = 2, 2, 12\n    weights, gradients, optimizer ="},
        STAGE,
    ),
    edit("13.1", "less, not at most", {"<= capacity": "< capacity"}, STAGE),
    edit("13.2", "computation only", {STEP: "forward + backward"}, TIME),
    edit("13.2", "forward hides too", {STEP: "max(forward + backward, ring)"}, TIME),
    edit("13.2", "half of the ring", {"2 * (world - 1)": "(world - 1)"}, TIME),
    edit("13.2", "everything sharded", {"(4 + 12 / world)": "16 / world"}, TIME),
    edit("13.2", "less, not at most", LESS, TIME),
    edit("13.2", "steps rounded up", {"steps * step <=": "-(-steps // 1) * step <="}, TIME),
    edit("13.2", "sequences cut", {" and whole": ""}, LIMITS),
    edit("13.2", "efficiency forgotten", {'>= run["efficiency"]': ">= 0"}, LIMITS),
    Mutant("13.3", "the tokens of a step", (1050, 54, 1050, 8400), WALLS),
    Mutant("13.3", "all experts compute", (264, 526, 1050, 4208), WALLS),
    Mutant("13.3", "three halves of the bytes, two thirds of the way", (176, 54, 1050, 4208), WALLS),
    Mutant("13.3", "a whole ring behind backward", (264, 54, 526, 4208), WALLS),
    Mutant("13.3", "copies for GPUs", (264, 54, 1050, 526), WALLS),
    Mutant("13.3", "sequences for tokens", (1, 1, 1, 1), WALLS),
    edit("13.4", "first dimension fastest", {STRIDE: "names[: names.index(name)]"}, GROUP),
    edit("13.4", "always neighbours", {f"prod(sizes[inner] for inner in {STRIDE})": "1"}, GROUP),
    edit("13.4", "always rank 0's", {FIRST: "first = 0"}, GROUP),
    edit("13.4", "the same coordinate", {MEMBERS: SAME}, GROUP),
    edit("13.4", "the size for the stride", {f"prod(sizes[inner] for inner in {STRIDE})": "sizes[name]"}, GROUP),
)

WORTHLESS = (
    ("13.1", lambda *case: 0),
    ("13.1", lambda *case: None),
    ("13.2", lambda run, gpu, sizes: min(sizes)),
    ("13.2", lambda run, gpu, sizes: None),
    *named(MUTANTS, "13.2", "computation only"),
    ("13.2", edited("13.2", {STEP: "forward + backward + ring"})),
    ("13.2", edited("13.2", {WORLDS: WORLDS.replace("min", "max")})),
    ("13.2", edited("13.2", {WORLDS: "next((world for world in sizes if will_do(world)), None)"})),
    ("13.3", (1050, 1050, 1050, 1050)),
    ("13.4", lambda sizes, rank, name: [rank]),
    ("13.4", lambda sizes, rank, name: list(range(sizes[name]))),
)
"""Answers that must not earn a single point."""

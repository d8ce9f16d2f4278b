"""Wrong answers to exercise 11, each with the mistake that people make."""

import numpy as np

from dpbook.book.sim import missing
from tests.classroom.mutants.edits import Mutant, edit, edited

RIGHT = (25_165_824, 25_165_824, 12_582_912, 983_040, 15_728_640, 37_748_736)


def with_number(place, number):
    return (*RIGHT[:place], number, *RIGHT[place + 1 :])


NO_SYNC, MODEL_STATE, LOSS = "nullcontext() if last else ddp.no_sync()", "ddp.module.state_dict()", "loss.detach()"
UNWRAPPED = {
    "ddp, sampler = DistributedDataParallel(model)": "ddp, sampler = model",
    NO_SYNC: "nullcontext()",
    MODEL_STATE: "model.state_dict()",
}
FORWARD_OUTSIDE = {
    f"with {NO_SYNC}:": f"output = ddp(x.to(device))\n            with {NO_SYNC}:",
    "mse_loss(ddp(x.to(device))": "mse_loss(output",
}
ON_THE_CPU = {"x.to(device)": "x", "y.to(device)": "y"}
ONE_RANKS_LOSS = {"dist.all_reduce(total)": "pass", "total.item() / dist.get_world_size()": "total.item()"}
BEFORE, DEVICE, GPU = "sum(len(gpus) for gpus in nodes[:node])", "local if sees_all else 0", "nodes[node][local]"
ALONE, TOGETHER = "one rank: the script as it was", "three real processes"
NUMBERS, NODES = "six numbers", "nodes of different sizes"
FINITE, BROKEN = "finite gradients", "an inf or a NaN on some ranks"
FLAG, SKIPPED = "all_reduce(float(not np.isfinite(gradient).all()))", "if broken:\n        return scale / 2"
STEPPED = "weights -= rate * (gradient / scale)"
SAVED = "(weights, velocity, total, order, first, done, rng.bit_generator.state)"
THROUGH, ONE_STOP, THREE_STOPS = "never stopped", "one stop", "three stops"
DRAWN, STATE = 'order, first = rng.permutation(s["examples"]), 0', "rng.bit_generator.state = state"
LOADED = "weights, velocity, total, order, first, done, state = saved"
UNPICKLED = LOADED.replace("= saved", "= __import__('pickle').loads(saved)")
AT_THE_END = 'if first >= s["examples"]:'
MUTANTS = (
    edit("11.1", "no set_epoch", {"sampler.set_epoch(epoch)": "pass"}, ALONE),
    edit("11.1", "no no_sync", {NO_SYNC: "nullcontext()"}, ALONE),
    edit("11.1", "module. in the checkpoint", {MODEL_STATE: "ddp.state_dict()"}, ALONE),
    edit("11.1", "no sampler", {"batch, sampler=sampler": "batch, shuffle=True"}, TOGETHER),
    edit("11.1", "one rank's loss", ONE_RANKS_LOSS, TOGETHER),
    *([] if missing() else [edit("11.1", "examples stay on the CPU", ON_THE_CPU, TOGETHER)]),  # seen on the stand-in
    edit("11.1", "every rank writes", {"if dist.get_rank() == 0:": "if True:"}, TOGETHER),
    Mutant("11.2", "autocast halves", with_number(1, 12_582_912), NUMBERS),
    Mutant("11.2", "bf16 weights, fp32 gradients", with_number(2, 25_165_824), NUMBERS),
    Mutant("11.2", "adapters of both sides, squared", with_number(3, 12 * 2 * 8 * 8 * 4), NUMBERS),
    Mutant("11.2", "no_sync remembered", with_number(4, 983_040), NUMBERS),
    Mutant("11.2", "elements", tuple(number // 4 for number in RIGHT), NUMBERS),
    Mutant("11.2", "all that is sent", with_number(5, 4 * 37_748_736), NUMBERS),
    Mutant("11.2", "the payload", with_number(5, 25_165_824), NUMBERS),
    edit("11.3", "nodes alike", {BEFORE: "node * len(nodes[node])"}, NODES),
    edit("11.3", "device by rank", {DEVICE: "rank"}, NODES),
    edit("11.3", "device by GPU", {DEVICE: GPU}, NODES),
    edit("11.3", "its own GPU has the local number", {DEVICE: "local"}, NODES),
    edit("11.3", "GPUs from 0", {GPU: "local"}, NODES),
    edit("11.3", "GPUs sorted", {GPU: "sorted(nodes[node])[local]"}, NODES),
    edit("11.3", "GPUs one after another", {GPU: "nodes[node][0] + local"}, NODES),
    edit("11.3", "a node for the world", {"sum(len(gpus) for gpus in nodes)": "len(nodes[0])"}, NODES),
    edit(
        "11.4", "each rank for itself", {"broken = all_reduce(float(": "all_reduce(0.0)\n    broken = (float("}, BROKEN
    ),
    edit("11.4", "an inf and no NaN", {"not np.isfinite(gradient).all()": "np.isinf(gradient).any()"}, BROKEN),
    edit("11.4", "a NaN and no inf", {"not np.isfinite(gradient).all()": "np.isnan(gradient).any()"}, BROKEN),
    edit("11.4", "only if all are broken", {"if broken:": "if broken > 1:"}, BROKEN),
    edit("11.4", "skipped at the same scale", {"scale / 2": "scale"}, BROKEN),
    edit(
        "11.4",
        "set to 0, not skipped",
        {
            STEPPED: STEPPED,
            SKIPPED: "gradient = np.nan_to_num(gradient, posinf=0, neginf=0)\n    scale /= 1 + (broken > 0)",
        },
        BROKEN,
    ),
    edit(
        "11.4",
        "elsewhere the update is made",
        {SKIPPED: f"if broken:\n        if np.isfinite(gradient).all(): {STEPPED}\n        return scale / 2"},
        BROKEN,
    ),
    edit("11.4", "the scale stays in the step", {"(gradient / scale)": "gradient"}, FINITE),
    edit("11.4", "the sum must be finite", {FLAG: "all_reduce(float(not np.isfinite(gradient.sum())))"}, FINITE),
    edit(
        "11.4",
        "the largest of no elements",
        {"not np.isfinite(gradient).all()": "not np.isfinite(np.abs(gradient).max())"},
        FINITE,
    ),
    edit(
        "11.4",
        "the gradient changed in place",
        {STEPPED: "gradient /= np.float32(scale)\n    weights -= rate * gradient"},
        FINITE,
    ),
    edit("11.4", "multiplied before it is divided", {STEPPED: "weights -= rate * gradient / scale"}, FINITE),
    edit("11.4", "a new array of weights", {STEPPED: "weights = weights - rate * (gradient / scale)"}, FINITE),
    edit("11.4", "half as a whole number", {"return scale / 2": "return scale // 2"}, BROKEN),
    edit("11.4", "no scale below one", {"return scale / 2": "return max(scale / 2, 1.0)"}, BROKEN),
    edit("11.4", "the inverse in half precision", {"gradient / scale": "gradient * np.float16(1 / scale)"}, FINITE),
    edit("11.5", "pickled", {SAVED: f"__import__('pickle').dumps({SAVED})", LOADED: UNPICKLED}, THROUGH),
    edit("11.5", "weights alone", {LOADED: "weights, _, _, order, first, done, state = saved"}, ONE_STOP),
    edit("11.5", "the generator begins anew", {STATE: "pass"}, ONE_STOP),
    edit("11.5", "the epoch begins anew", {LOADED: f'{LOADED}\n        first = s["examples"]'}, ONE_STOP),
    edit("11.5", "the gradients so far are lost", {"total = total.copy()": 'total = np.zeros(s["size"])'}, ONE_STOP),
    edit("11.5", "updates counted from the stop", {STATE: f"{STATE}\n        done = 0"}, ONE_STOP),
    edit(
        "11.5", "seed and number of micro-batches", {STATE: 'rng = np.random.default_rng([s["seed"], done])'}, ONE_STOP
    ),
    edit("11.5", "in float32", {"return weights, (weights,": "return weights, (weights.astype(np.float32),"}, ONE_STOP),
    edit(
        "11.5",
        "saved once, at the first stop",
        {f"return weights, {SAVED}": f"return weights, saved or {SAVED}"},
        THREE_STOPS,
    ),
    edit("11.5", "the last examples left out", {AT_THE_END: 'if first + s["batch"] > s["examples"]:'}, THROUGH),
    edit("11.5", "the mean over what is left", {'/ s["accumulation"]': "/ 2"}, THROUGH),
)

WORTHLESS = (
    ("11.1", edited("11.1", UNWRAPPED)),
    ("11.1", edited("11.1", {" / accumulation": "", LOSS: f"{LOSS} / accumulation"})),
    ("11.1", edited("11.1", FORWARD_OUTSIDE)),
    ("11.2", (0, 0, 0, 0, 0, 0)),
    ("11.3", edited("11.3", {BEFORE: "0"})),
    ("11.4", lambda weights, gradient, scale, rate, all_reduce: scale),
    ("11.4", lambda weights, gradient, scale, rate, all_reduce: all_reduce(0.0) + scale / 2),
    ("11.5", lambda micro_batches, saved, gradient, s: (np.zeros(s["size"]), saved)),
)
"""Answers that must not earn a single point."""

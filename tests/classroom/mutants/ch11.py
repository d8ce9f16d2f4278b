"""Wrong answers to exercise 11, each with the mistake that people make."""

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
)

WORTHLESS = (
    ("11.1", edited("11.1", UNWRAPPED)),
    ("11.1", edited("11.1", {" / accumulation": "", LOSS: f"{LOSS} / accumulation"})),
    ("11.1", edited("11.1", FORWARD_OUTSIDE)),
    ("11.2", (0, 0, 0, 0, 0, 0)),
    ("11.3", edited("11.3", {BEFORE: "0"})),
)
"""Answers that must not earn a single point."""

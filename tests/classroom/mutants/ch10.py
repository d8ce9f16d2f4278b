"""Wrong answers to exercise 10, each with the mistake that people make."""

import threading

import torch

from tests.classroom.mutants.edits import Mutant, edit, edited, named

BOARD, MEETINGS = {}, {}


class WithoutMessages(edited("10.1", {})):
    """Ranks that are threads find one another's gradients in a dictionary; processes would not."""

    def finish(self):
        meeting = MEETINGS.setdefault(self.world, threading.Barrier(self.world, timeout=5))
        bucketed_ddp = [p for p in self.module.parameters() if p.grad is not None]
        BOARD[id(self)] = [p.grad for p in bucketed_ddp]
        meeting.wait()
        means = [sum(parts) / self.world for parts in zip(*BOARD.values(), strict=True)]
        meeting.wait()
        BOARD.clear()
        for parameter, mean in zip(bucketed_ddp, means, strict=True):
            parameter.grad = mean
        meeting.wait()


def first_half(module, world, all_reduce):
    """Only the layers in the second half have a hook; the others are sent by finish."""
    every = [p for p in module.parameters() if p.requires_grad]
    hooked = torch.nn.ParameterList(every[len(every) // 2 :])
    wait = edited("10.2", {})(hooked, world, all_reduce)

    def finish():
        for parameter in every[: len(every) // 2]:
            parameter.grad /= world
            all_reduce(parameter.grad).wait()
        wait()

    return finish


BIG, IN_TIME = "the steps of the big batch", "sent in time, waited for at the end"
ONE, SEVERAL = "one bucket that never gets full", "several buckets"
ORDER = "buckets in order, during backward"
PARAMETER = {"parameter.grad /= ": "parameter.data /= ", "all_reduce(parameter.grad)": "all_reduce(parameter.data)"}
TENSORS, HAS_GRADIENT = "[*module.parameters(), *module.buffers()]", "if parameter.grad is not None:"
TRAINED = "[*(p for p in module.parameters() if p.requires_grad), *module.buffers()]"
OR_ZEROS = """\
if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if True:"""
BEGUN, DIVIDED = "handles.append(all_reduce(parameter.grad))", "parameter.grad /= world"
NEVER_CLEARED = {
    DIVIDED: "pass",
    BEGUN: "handles.append((all_reduce(parameter.grad), parameter.grad))",
    "while handles:": "for handle, gradient in handles:",
    "handles.pop(0).wait()": "handle.wait()\n            gradient /= world",
}
"""Divides after the wait, and in the next step once more what it has kept."""
LATE = {
    "handles = []": "handles, late = [], []",
    "hook(ready)": "hook(late.append)",
    "while handles:": "while late:\n            ready(late.pop(0))\n        while handles:",
}
FIRST_GRADIENTS = {
    "handles = []": "handles, first = [], {}",
    "parameter.grad /= world": "gradient = first.setdefault(parameter, parameter.grad)\n        gradient /= world",
    "all_reduce(parameter.grad)": "all_reduce(gradient)",
}
LEFT_OVER, FLUSHED = "if self.bucket:  # what is left over", "self.bucket, self.shapes, self.held = [], [], 0"
SHAPES_KEPT = {FLUSHED: "self.bucket, self.held = [], 0"}
SENT = "self.sent.append((self.all_reduce(flat), flat, self.bucket, self.shapes))"
FULL = "while len(self.handles) < len(self.flat) and not self.missing[len(self.handles)]:"
AS_THEY_FILL = {
    FULL: "bucket = self.plan.places[k][0]\n            if not self.missing[bucket]:",
    "self.flat[len(self.handles)]": "self.flat[bucket]",
    "self.flat[len(self.handles) :]": "[flat for flat, missing in zip(self.flat, self.missing) if missing]",
}
LOCKED = {
    "class MyDDP:": "import threading\n\n\nclass MyDDP:",
    "def ready(self, k):": "def ready(self, k, lock=threading.Lock()):",
}
MUTANTS = (
    edit("10.1", "no broadcast", {TENSORS: "[]"}, BIG),
    edit("10.1", "buffers left out", {TENSORS: "module.parameters()"}, BIG),
    edit("10.1", "frozen parameters left out", {TENSORS: TRAINED}, BIG),
    edit("10.1", "no wait", {".wait()": ""}, BIG),
    edit("10.1", "the parameter averaged", PARAMETER, BIG),
    edit("10.1", "zeros for what is frozen", {HAS_GRADIENT: OR_ZEROS}, BIG),
    edit("10.1", "the state dict", {TENSORS: "module.state_dict().values()"}, BIG),
    edit("10.1", "trained, so it has a gradient", {HAS_GRADIENT: "if parameter.requires_grad:"}, BIG),
    edit("10.2", "handles never cleared", NEVER_CLEARED, IN_TIME),
    edit("10.2", "a hook that waits", {BEGUN: "all_reduce(parameter.grad).wait()"}, IN_TIME),
    edit("10.2", "sent after backward", LATE, IN_TIME),
    Mutant("10.2", "half of it sent after backward", first_half, IN_TIME),
    edit("10.2", "no division", {DIVIDED: "pass"}, IN_TIME),
    edit("10.2", "the gradients of the first step", FIRST_GRADIENTS, IN_TIME),
    edit("10.2", "the parameter averaged", PARAMETER, IN_TIME),
    edit("10.3", "only the shapes cleared", {LEFT_OVER: "if False:"}, ONE),
    edit(
        "10.3",
        "what is left is dropped",
        {f"{LEFT_OVER}\n            self.flush()": "self.bucket, self.held = [], 0"},
        ONE,
    ),
    edit("10.3", "only the last bucket sent", SHAPES_KEPT, SEVERAL),
    edit("10.3", "an empty bucket sent", {LEFT_OVER: "if True:"}, SEVERAL),
    edit("10.3", "a bucket that is waited for", {SENT: f"{SENT}\n        self.sent[-1][0].wait()"}, SEVERAL),
    edit("10.3", "a cap to be exceeded", {">= self.cap": "> self.cap"}, SEVERAL),
    edit("10.4", "what does not come is 0", {"if self.parameters[k].grad is not None:": "if False:"}, "accumulation"),
    edit("10.4", "no_sync never ends", {"self.enabled = before": "pass"}, "accumulation"),
    edit("10.4", "the state dict", {TENSORS: "module.state_dict().values()"}, "the gradients of the big batch"),
    edit("10.4", "everything after backward", {FULL: "while False:"}, ORDER),
    edit("10.4", "sent as they get full", AS_THEY_FILL, ORDER),
    edit("10.4", "a bucket that never gets full stays", {"self.flat[len(self.handles) :]": "[]"}, ORDER),
    edit(
        "10.4",
        "no_sync does nothing",
        {"before, self.enabled = self.enabled, False": "before = self.enabled"},
        "accumulation",
    ),
    edit("10.4", "a lock, which cannot travel", LOCKED, "three real processes"),
)

WORTHLESS = (
    ("10.1", edited("10.1", {"parameter.grad /= self.world": "pass"})),
    ("10.1", WithoutMessages),
    *named(MUTANTS, "10.2", "sent after backward"),
    ("10.3", edited("10.3", {LEFT_OVER: "if False:", **SHAPES_KEPT})),
    ("10.4", edited("10.4", {"grad / self.world)\n            self.missing": "grad)\n            self.missing"})),
)
"""Answers that must not earn a single point."""

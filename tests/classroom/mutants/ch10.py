"""Wrong answers to exercise 10, each with the mistake that people make."""

import contextlib
import threading

import torch

from dpbook import overlap
from dpbook.classroom.tasks.judging import Mutant

# 10.1: broadcast and average


def naive(
    *,
    broadcast_tensors=lambda module: [*module.parameters(), *module.buffers()],
    divide=True,
    wait=True,
    send=None,
    zeros=False,
):
    """Broadcast ``what``, then sum every gradient (or what ``send`` makes of a parameter)."""

    class Naive:
        def __init__(self, module, world, broadcast, all_reduce):
            self.module, self.world, self.all_reduce = module, world, all_reduce
            for tensor in broadcast_tensors(module):
                broadcast(tensor.data)

        def finish(self):
            for parameter in self.module.parameters():
                if zeros and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                if parameter.grad is not None:
                    tensor = send(parameter) if send else parameter.grad
                    if divide:
                        tensor /= self.world
                    message = self.all_reduce(tensor)
                    if wait:
                        message.wait()

    return Naive


def state_only(module):
    """Content of a checkpoint: buffers that are not persistent stay local."""
    return module.state_dict().values()


class AsksRequiresGrad(naive()):
    """Sends the gradient of all that is trained, whether it has one or not."""

    def finish(self):
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                self.all_reduce(parameter.grad).wait()
                parameter.grad /= self.world


BOARD, MEETINGS = {}, {}


class WithoutMessages(naive()):
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


def trained_only(module):
    return [p for p in module.parameters() if p.requires_grad] + [*module.buffers()]


# 10.2: hooks


def attached(*, divide=True, at_once=False, late=False, send=lambda parameter: parameter.grad):
    def attach(module, world, all_reduce):
        messages, ready = [], []

        def begin(parameter):
            tensor = send(parameter)
            if divide:
                tensor /= world
            messages.append(all_reduce(tensor))
            if at_once:
                messages[-1].wait()

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(ready.append if late else begin)

        def finish():
            while ready:
                begin(ready.pop(0))
            while messages:
                messages.pop(0).wait()

        return finish

    return attach


def never_cleared(module, world, all_reduce):
    """Divides after the wait, and in the next step once more what it has kept."""
    sent = []

    def begin(parameter):
        sent.append((all_reduce(parameter.grad), parameter.grad))

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(begin)

    def finish():
        for handle, gradient in sent:
            handle.wait()
            gradient /= world

    return finish


def first_half(module, world, all_reduce):
    """Only the layers in the second half have a hook; the others are sent by finish."""
    every = [p for p in module.parameters() if p.requires_grad]
    hooked = torch.nn.ParameterList(every[len(every) // 2 :])
    wait = attached()(hooked, world, all_reduce)

    def finish():
        for parameter in every[: len(every) // 2]:
            parameter.grad /= world
            all_reduce(parameter.grad).wait()
        wait()

    return finish


# 10.3: the published wrapper


def published(*, flush=False, drop=False, guard=True, clear=False, wait=False, above=False):
    """Method as published; ``flush``, ``guard`` and ``clear`` are the repairs."""

    class Published:
        def __init__(self, module, cap, world, all_reduce):
            self.cap, self.world, self.all_reduce = cap, world, all_reduce
            self.bucket, self.shapes, self.held, self.sent = [], [], 0, []
            for p in module.parameters():
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(self.ready)

        def ready(self, p):
            self.bucket.append(p)
            self.shapes.append(p.shape)
            self.held += p.grad.numel() * p.grad.element_size()
            if self.held > self.cap or (self.held == self.cap and not above):
                self.flush()

        def flush(self):
            flat = torch.cat([p.grad.flatten() for p in self.bucket]) / self.world
            self.sent.append((self.all_reduce(flat), flat, self.bucket, self.shapes))
            if wait:
                self.sent[-1][0].wait()
            self.bucket, self.held = [], 0
            if clear:
                self.shapes = []

        def finish(self):
            if flush and (self.bucket or not guard):
                self.flush()
            if drop:
                self.bucket, self.held = [], 0
            for handle, flat, bucket, shapes in self.sent:
                handle.wait()
                at = 0
                for p, shape in zip(bucket, shapes, strict=False):
                    p.grad = flat[at : at + shape.numel()].view(shape)
                    at += shape.numel()
            self.sent.clear()

    return Published


# 10.4: the reader's own


def bucketed_ddp(
    *,
    broadcast_tensors=lambda module: [*module.parameters(), *module.buffers()],
    overlapped=True,
    ordered=True,
    forgets=False,
    resumes=True,
    divide=True,
    local=True,
    travels=True,
    stays_full=True,
):
    """A bucketed wrapper with one thing wrong."""
    lock = contextlib.nullcontext() if travels else threading.Lock()

    class MyDDP:
        def __init__(self, module, cap, world, broadcast, all_reduce):
            self.world, self.all_reduce, self.enabled = world, all_reduce, True
            for tensor in broadcast_tensors(module):
                broadcast(tensor.data)
            self.parameters = [p for p in module.parameters() if p.requires_grad]
            tensors = [overlap.Tensor(str(k), tuple(p.shape), "float64") for k, p in enumerate(self.parameters)]
            self.plan = overlap.plan(tensors, cap, first=None)
            self.flat = [torch.zeros(b.elements, dtype=torch.float64) for b in self.plan.buckets]
            self.reset()
            for k, p in enumerate(self.parameters):
                p.register_post_accumulate_grad_hook(lambda p, k=k: self.ready(k))

        def reset(self):
            self.missing, self.messages = [len(group) for group in self.plan.groups], {}
            self.absent = set(range(len(self.parameters)))
            for flat in self.flat:
                flat.zero_()

        def view(self, k):
            bucket, at = self.plan.places[k]
            return self.flat[bucket][at : at + self.parameters[k].numel()].view_as(self.parameters[k])

        def ready(self, k):
            if not self.enabled:
                return
            with lock:
                self.view(k).copy_(self.parameters[k].grad / (self.world if divide else 1))
                bucket = self.plan.places[k][0]
                self.missing[bucket] -= 1
                self.absent.discard(k)
                if overlapped and ordered:
                    self.send_full()
                elif overlapped and not self.missing[bucket]:
                    self.send(bucket)

        def send_full(self):
            while len(self.messages) < len(self.flat) and not self.missing[len(self.messages)]:
                self.send(len(self.messages))

        def send(self, bucket):
            self.messages[bucket] = self.all_reduce(self.flat[bucket])

        def finish(self):
            if not overlapped:
                self.send_full()
            for k, p in enumerate(self.parameters):
                if k in self.absent and p.grad is not None and not forgets:
                    self.view(k).copy_(p.grad / self.world)
            for bucket in set(range(len(self.flat))) - set(self.messages) if stays_full else ():
                self.send(bucket)
            for message in self.messages.values():
                message.wait()
            for k, p in enumerate(self.parameters):
                p.grad = self.view(k).clone()
            self.reset()

        @contextlib.contextmanager
        def no_sync(self):
            self.enabled = not local
            try:
                yield
            finally:
                self.enabled = resumes

    return MyDDP


BIG, IN_TIME = "the steps of the big batch", "sent in time, waited for at the end"
ONE, SEVERAL = "one bucket that never gets full", "several buckets"
ORDER = "buckets in order, during backward"
MUTANTS = (
    Mutant("10.1", "no broadcast", naive(broadcast_tensors=lambda module: []), BIG),
    Mutant("10.1", "buffers left out", naive(broadcast_tensors=lambda module: module.parameters()), BIG),
    Mutant("10.1", "frozen parameters left out", naive(broadcast_tensors=trained_only), BIG),
    Mutant("10.1", "no wait", naive(wait=False), BIG),
    Mutant("10.1", "the parameter averaged", naive(send=lambda parameter: parameter.data), BIG),
    Mutant("10.1", "zeros for what is frozen", naive(zeros=True), BIG),
    Mutant("10.1", "the state dict", naive(broadcast_tensors=state_only), BIG),
    Mutant("10.1", "trained, so it has a gradient", AsksRequiresGrad, BIG),
    Mutant("10.2", "handles never cleared", never_cleared, IN_TIME),
    Mutant("10.2", "a hook that waits", attached(at_once=True), IN_TIME),
    Mutant("10.2", "sent after backward", attached(late=True), IN_TIME),
    Mutant("10.2", "half of it sent after backward", first_half, IN_TIME),
    Mutant("10.2", "no division", attached(divide=False), IN_TIME),
    Mutant("10.2", "the parameter averaged", attached(send=lambda parameter: parameter.data), IN_TIME),
    Mutant("10.3", "only the shapes cleared", published(clear=True), ONE),
    Mutant("10.3", "what is left is dropped", published(clear=True, drop=True), ONE),
    Mutant("10.3", "only the last bucket sent", published(flush=True), SEVERAL),
    Mutant("10.3", "an empty bucket sent", published(flush=True, clear=True, guard=False), SEVERAL),
    Mutant("10.3", "a bucket that is waited for", published(flush=True, clear=True, wait=True), SEVERAL),
    Mutant("10.3", "a cap to be exceeded", published(flush=True, clear=True, above=True), SEVERAL),
    Mutant("10.4", "what does not come is 0", bucketed_ddp(forgets=True), "accumulation"),
    Mutant("10.4", "no_sync never ends", bucketed_ddp(resumes=False), "accumulation"),
    Mutant("10.4", "the state dict", bucketed_ddp(broadcast_tensors=state_only), "the gradients of the big batch"),
    Mutant("10.4", "everything after backward", bucketed_ddp(overlapped=False), ORDER),
    Mutant("10.4", "sent as they get full", bucketed_ddp(ordered=False), ORDER),
    Mutant("10.4", "a bucket that never gets full stays", bucketed_ddp(stays_full=False), ORDER),
    Mutant("10.4", "no_sync does nothing", bucketed_ddp(local=False), "accumulation"),
    Mutant("10.4", "a lock, which cannot travel", bucketed_ddp(travels=False), "three real processes"),
)

WORTHLESS = (
    ("10.1", naive(divide=False)),
    ("10.1", WithoutMessages),
    ("10.2", attached(late=True)),
    ("10.3", published()),
    ("10.4", bucketed_ddp(divide=False)),
)
"""Answers that must not earn a single point."""

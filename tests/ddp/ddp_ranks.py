"""Scenarios for the ranks of test_ddp.py, in one start per world, with every wrapper; results as data."""

import contextlib
import copy
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dpbook.core.errors import DpbookError
from dpbook.ddp.wrappers import BucketedDDP, HookDDP, NaiveDDP

WRAPPERS = {"naive": NaiveDDP, "hook": HookDDP, "bucketed": BucketedDDP}
SMALL = {"cap": 800, "first": None}  # bytes: several buckets even for these models, in torch too
TORCH = {"bucket_cap_mb": 800 / 2**20}
STEPS, LATE_STEPS = 20, 8


class Tied(nn.Module):
    """Tied and frozen parameters, a convolution, a buffer, and one block in double precision."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.wide = nn.Linear(8, 8).double()
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        h = torch.tanh(self.frozen(self.embed(x)))
        h = self.norm(self.conv(h.transpose(1, 2))).transpose(1, 2)
        return self.out(torch.tanh(self.wide(h.double())).float())


class Branches(nn.Module):
    """Two branches; which come, and in which order, is the caller's choice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, order):
        for name in order:
            x = torch.tanh(getattr(self, name)(x))
        return self.head(x)


class Checkpointed(nn.Module):
    def __init__(self, reentrant=False):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 3)
        self.reentrant = reentrant

    def forward(self, x, *, tied=False):
        from torch.utils.checkpoint import checkpoint

        again = [self.blocks[0]] if tied else []
        for block in [*self.blocks, *again, self.head]:  # so that the first gradient comes from within a checkpoint
            x = checkpoint(lambda h, block=block: torch.tanh(block(h)), x, use_reentrant=self.reentrant)
        return {"scores": [x]}


def wrap(name, module, **options):
    if name == "torch":
        return DistributedDataParallel(module, **TORCH, **options)
    return WRAPPERS[name](module, **(SMALL if name == "bucketed" else {}), **options)


def all_of(name):
    return ["torch", *WRAPPERS] if name == "torch" else [name]


def bits(tensors):
    """Their bytes, or None where there is no tensor."""
    return [None if t is None else t.detach().contiguous().numpy().tobytes() for t in tensors]


def gradients(model):
    return bits(p.grad for p in model.parameters())


def tokens(seed):
    return torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(seed))


def vectors(seed):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))


def train(model, rank, world, *, steps=STEPS, set_to_none=True, accumulation=1, delay=None):
    """Parameters and buffers after every step, as bytes; every micro-batch is this rank's own."""
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.01)
    history = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for micro in range(accumulation):
            last = micro == accumulation - 1
            with contextlib.nullcontext() if last else model.no_sync():
                x = tokens(1000 * step + 10 * rank + micro)
                F.cross_entropy(model(x).flatten(0, 1), x.flatten()).div(accumulation).backward()
        optimizer.step()
        history.append(bits([*model.parameters(), *model.buffers()]))
    return history


def seeded(rank, make):
    """A module that differs from rank to rank, as a careless user's does."""
    torch.manual_seed(100 + rank)
    return make()


class Late:
    """A handle that is late by chance, so that messages overtake the computation that they wait for."""

    def __init__(self, work, seconds):
        self.work, self.seconds = work, seconds

    def wait(self):
        time.sleep(self.seconds)
        self.work.wait()


def delayed(rank):
    chance = random.Random(rank)

    def all_reduce(tensor):
        time.sleep(chance.random() / 500)
        return Late(dist.all_reduce(tensor, async_op=True), chance.random() / 500)

    return all_reduce


def refusal(call):
    try:
        call()
    except DpbookError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def trajectories(rank, world):
    found = {"start": {}, "plain": {}, "kept": {}, "accumulated": {}, "delayed": {}}
    for name in ("torch", *WRAPPERS):
        model = wrap(name, seeded(rank, Tied))
        found["start"][name] = bits([*model.parameters(), *model.buffers()])
        found["plain"][name] = train(model, rank, world)
        found["kept"][name] = train(wrap(name, seeded(rank, Tied)), rank, world, set_to_none=False, steps=5)
        found["accumulated"][name] = train(wrap(name, seeded(rank, Tied)), rank, world, accumulation=3, steps=5)
        if name != "torch":
            late = wrap(name, seeded(rank, Tied), all_reduce=delayed(rank))
            found["delayed"][name] = train(late, rank, world, steps=LATE_STEPS)
    return found


def big_batch(rank, world):
    """One step's averaged gradients, and those of the whole batch on one process, for a model without batch norm."""
    found = {}
    whole = torch.cat([vectors(r) for r in range(world)])
    for name in WRAPPERS:
        module = seeded(rank, Branches)
        model = wrap(name, module)
        alone = copy.deepcopy(module)
        model(vectors(rank), "ab").square().mean().backward()
        alone(whole, "ab").square().mean().backward()
        found[name] = [(p.grad.numpy().copy(), q.grad.numpy().copy())
                       for p, q in zip(module.parameters(), alone.parameters(), strict=True)]  # fmt: skip
    return found


def local_then_synced(rank, world):
    """Gradients inside `no_sync`, and after the backward that ends it."""
    found = {}
    for name in WRAPPERS:
        model = wrap(name, seeded(rank, Branches))
        with model.no_sync():
            model(vectors(rank), "ab").sum().backward()
        inside = gradients(model)
        calls = model.sent.calls
        model(vectors(rank + 50), "ab").sum().backward()
        found[name] = inside, gradients(model), calls
    return found


def crossed(rank, world):
    """Ranks whose gradients become ready in different orders."""
    found = {}
    for name in ("torch", *WRAPPERS):
        model = wrap(name, seeded(rank, Branches))
        for step in range(4):
            model.zero_grad()
            model(vectors(10 * step + rank), "ab" if rank % 2 else "ba").square().mean().backward()
        found[name] = gradients(model)
    return found


def unused(rank, world):
    """A branch that only rank 0 uses, and one that nobody does, with and without `find_unused`."""
    found = {"error": {}, "found": {}, "after": {}}
    for name in WRAPPERS:
        model = wrap(name, seeded(rank, Branches))
        found["error"][name] = refusal(lambda model=model: model(vectors(rank), "a").sum().backward())
        model(vectors(rank), "ab").sum().backward()
        found["after"][name] = gradients(model)
    for name in ("torch", *WRAPPERS):
        found["found"][name] = []
        model = wrap(
            name, seeded(rank, Branches), **{"find_unused_parameters" if name == "torch" else "find_unused": True}
        )
        some = "a" if rank else "ab"
        for order in (some, "a", "ab", some, "b"):  # in the second `some` the buffers hold old gradients
            model.zero_grad()
            model(vectors(rank), order).square().mean().backward()
            found["found"][name].append(gradients(model))
        model(vectors(rank), "a").square().mean().backward()  # nobody uses b: its gradient stays as it was
        found["found"][name].append(gradients(model))
    return found


def large(rank, world):
    """A gradient that goes into its bucket at once, and small ones that go into the same bucket later."""
    found = {}
    for name in ("torch", *WRAPPERS):
        model = wrap(name, seeded(rank, lambda: nn.Sequential(nn.Linear(256, 128), nn.Linear(128, 3))))
        model(torch.randn(4, 256, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
        found[name] = gradients(model)
    return found


def precisions(rank, world):
    """Under autocast, with checkpointed blocks of either kind, and in another memory format."""
    found = {"autocast": {}, "checkpointed": {}, "reentrant": {}, "tied": {}, "channels_last": {}}
    for name in ("torch", *WRAPPERS):
        model = wrap(name, seeded(rank, Branches))
        for step in range(3):
            model.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(vectors(10 * step + rank), "ab").float().square().mean()
            loss.backward()
        found["autocast"][name] = gradients(model), [str(p.grad.dtype) for p in model.parameters()]
        for kind, reentrant in (("checkpointed", False), ("reentrant", True)):
            model = wrap(name, seeded(rank, lambda reentrant=reentrant: Checkpointed(reentrant)))
            for step in range(3):
                model.zero_grad()
                model(vectors(10 * step + rank).requires_grad_())["scores"][0].square().mean().backward()
            found[kind][name] = gradients(model)
        if name != "torch":
            twice = model(vectors(rank).requires_grad_(), tied=True)["scores"][0]
            found["tied"][name] = refusal(twice.sum().backward)
        found["channels_last"][name] = channels_last(name, rank)
    return found


def channels_last(name, rank):
    """The strides of the weights and of their gradients, and the gradients."""
    module = seeded(rank, lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)))
    views = {"gradient_as_bucket_view": True} if name == "torch" else {}
    model = wrap(name, module.to(memory_format=torch.channels_last), **views)
    for step in range(2):
        model.zero_grad()
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x.to(memory_format=torch.channels_last)).square().mean().backward()
    parameters = list(model.parameters())
    return [p.stride() for p in parameters], [p.grad.stride() for p in parameters], gradients(model)


def books(rank, world):
    """Representations of the wrappers."""
    found = {}
    for name in WRAPPERS:
        module = seeded(rank, Tied)
        model = wrap(name, module)
        train(model, rank, world, steps=3)
        traffic = model.sent
        buffers = {b.buffer.untyped_storage().data_ptr() for b in model._reducer.buckets}
        found[name] = {
            "traffic": (traffic.syncs, traffic.calls, traffic.nbytes),
            "plan": (model.plan.calls, model.plan.total_bytes),
            "first": (model.first_plan(False).calls, model.first_plan(False).total_bytes),
            "state": list(model.state_dict()) == list(module.state_dict()),
            "loads": str(model.load_state_dict(Tied().state_dict())),
            "views": all(
                p.grad.untyped_storage().data_ptr() in buffers for p in module.parameters() if p.requires_grad
            ),
            "frozen": module.frozen.weight.grad is None,
            "twice": refusal(lambda module=module: NaiveDDP(module)),
            "unwrapped": refusal(lambda model=model: NaiveDDP(model.unwrap())),
        }
    return found


def in_time(rank, world):
    """When messages go out: before (True) or after the first layer's backward, the last of all."""
    found = {}
    for name in WRAPPERS:
        log = []

        def all_reduce(tensor, log=log):
            log.append("sent")
            return dist.all_reduce(tensor, async_op=True)

        model = wrap(name, nn.Sequential(*[nn.Linear(20, 20) for _ in range(5)]), all_reduce=all_reduce)
        for _ in range(2):
            log.clear()
            x = torch.randn(3, 20, requires_grad=True)
            x.register_hook(lambda grad, log=log: log.append("backward over"))
            model(x).sum().backward()
        found[name] = list(log)
    return found


def faults(rank, world):
    """Errors that every rank must raise, and a backward that raises, after which the next is right."""

    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("on purpose")

    recovered = {}
    for name in WRAPPERS:
        torch.manual_seed(0)
        model = wrap(name, nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
        plain = copy.deepcopy(model.module)
        with contextlib.suppress(ValueError):
            Raises.apply(model(vectors(0))).sum().backward()
        model.zero_grad()
        model(vectors(0)).sum().backward()
        plain(vectors(0)).sum().backward()
        recovered[name] = all(
            torch.allclose(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)
        )
    return {
        "recovered": recovered,
        "shape": refusal(lambda: NaiveDDP(nn.Linear(3, 4 + rank))),
        "trained": refusal(lambda: NaiveDDP(nn.Linear(3, 4).requires_grad_(rank == 0) if rank == 0 else half_frozen())),
        "nothing": refusal(lambda: HookDDP(nn.ReLU())),
        "no module": refusal(lambda: BucketedDDP("model")),
        "sparse": refusal(lambda: wrap("bucketed", nn.Embedding(11, 4, sparse=True))(tokens(0)).sum().backward()),
        "order": refusal(lambda: HookDDP(nn.Linear(3, 4)).resume_order([0, 0])),
        "only inputs": gradient_of_inputs(),
    }


def gradient_of_inputs():
    """A backward that asks for no parameter's gradient sends nothing, and is no backward without gradients."""
    model, x = wrap("bucketed", Branches()), vectors(0).requires_grad_()
    torch.autograd.grad(model(x, "ab").sum(), x)
    return model.sent.calls


def half_frozen():
    layer = nn.Linear(3, 4)
    layer.bias.requires_grad_(False)
    return layer


def everything(rank, world):
    torch.set_num_threads(1)
    scenarios = (trajectories, big_batch, local_then_synced, crossed, unused, large, precisions, books, in_time, faults)
    return {scenario.__name__: scenario(rank, world) for scenario in scenarios}

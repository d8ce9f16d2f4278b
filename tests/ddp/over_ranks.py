"""Training over schedules and rank programs, on the ranks of test_over.py, in one start per world."""

import copy
import threading
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook.collectives import ALGORITHMS, FixedBounds, Round, Schedule, gloo_ring, reduce_scatter, ring, tree
from dpbook.ddp.transport import over
from dpbook.ddp.wrappers import BucketedDDP, HookDDP, NaiveDDP
from dpbook.ranks.messages import execute
from tests.collectives.programs import PROGRAMS, ring_program

WRAPPERS = {"naive": NaiveDDP, "hook": HookDDP, "bucketed": BucketedDDP}
BYTES = 2000  # of a bucket: several even for a small network
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
SOON = timedelta(seconds=3)


def own_order(comm, x):
    """Every rank adds the others' contributions to its own, going round the circle: the sum's order is its own."""
    mine, n, r = x.copy(), comm.world_size, comm.rank
    for distance in range(1, n):
        comm.sendrecv(mine, (r - distance) % n, x, (r + distance) % n, op="sum")


def folded_dissemination():
    """Four ranks that pass on what they have to the next, and to the one after that; rank 4 works through rank 0."""
    ranks = np.arange(4)
    circles = [Round.of(ranks, (ranks + distance) % 4, 0, True) for distance in (1, 2)]
    return Schedule(5, 1, [Round.of(4, 0, 0, True), *circles, Round.of(0, 4, 0, False)], name="folded dissemination")


def schedules(world):
    drifting = {"folded dissemination": folded_dissemination()} if world == 5 else {}
    return {name: make(world) for name, make in {"gloo_ring": gloo_ring, **ALGORITHMS}.items()} | drifting


def network():
    return nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3), nn.Linear(3, 1))


def wrap(name, module, all_reduce=None):
    if name == "torch":
        model = DistributedDataParallel(module, bucket_cap_mb=BYTES / 2**20)
        if all_reduce is not None:
            model.register_comm_hook(None, all_reduce.hook)
        return model
    return WRAPPERS[name](
        module, all_reduce=all_reduce, **({"cap": BYTES, "first": None} if name == "bucketed" else {})
    )


def train(model, rank, steps=4):
    """The parameters after every step, as bytes; every rank has data of its own."""
    history = []
    for step in range(steps):
        model.zero_grad()
        x = torch.randn(8, 30, generator=torch.Generator().manual_seed(100 * step + rank))
        model(x).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        history.append(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return history


def trajectories(rank, world):
    """For each wrapper the history over torch's own all-reduce and over gloo's ring as a schedule."""
    torch.manual_seed(rank)
    base = network()
    return {
        name: [train(wrap(name, copy.deepcopy(base), sync), rank) for sync in (None, over(gloo_ring))]
        for name in ("torch", *WRAPPERS)
    }


def algorithms(rank, world):
    """The history over every schedule and every rank program."""
    torch.manual_seed(rank)
    base = network()
    every = {**schedules(world), **{f"{name} program": p for name, p in PROGRAMS.items()}} | {"own order": own_order}
    return {name: train(wrap("bucketed", copy.deepcopy(base), over(one)), rank) for name, one in every.items()}


def sums(rank, world):
    """Sums of integers, for every kind of size and dtype: (how, size, dtype, result)."""
    found = []
    for how, all_reduce in {"gloo_ring": gloo_ring, "tree": tree(world), "program": ring_program}.items():
        begin, handles = over(all_reduce), []
        for dtype in DTYPES:
            for size in (0, 1, world - 1, world, 2 * world + 1, 1001):
                tensor = (torch.arange(size) % 7 + rank).to(getattr(torch, dtype))
                if how != "program" or dtype != "bfloat16":
                    handles.append((size, dtype, tensor, begin(tensor)))
        for size, dtype, tensor, handle in handles:
            handle.wait()
            found.append((how, size, dtype, tensor.double().tolist()))
    return found


def early(rank, world):
    """Whether a call returns before the sum is there: the rank program waits until this has been looked at."""
    gate, x = threading.Event(), torch.full((5,), rank + 1.0)

    def gated(comm, x):
        gate.wait(60)
        ring_program(comm, x)

    handle = over(gated)(x)
    before = handle.done(), x.tolist()
    gate.set()
    handle.wait()
    return before, x.tolist()


class Pause(torch.autograd.Function):
    """Backward stops here until ``wait`` returns, and goes on."""

    @staticmethod
    def forward(ctx, x, wait):
        ctx.wait = wait
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.wait()
        return gradient, None


class Paused(nn.Module):
    def __init__(self, wait):
        super().__init__()
        self.first, self.rest, self.wait = (
            nn.Linear(20, 20),
            nn.Sequential(*[nn.Linear(20, 20) for _ in range(4)]),
            wait,
        )

    def forward(self, x):
        return self.rest(Pause.apply(self.first(x), self.wait))


def overlap(rank, world):
    """Wrappers that have a sum complete in the middle of backward, which waits there for one to be (step 2)."""
    found = {}
    for name in ("torch", *WRAPPERS):
        summed, log = threading.Event(), []

        def logged(comm, x, summed=summed):
            ring_program(comm, x)
            summed.set()

        def wait(summed=summed, log=log, name=name):
            log.append(summed.wait(0.2 if name == "naive" else 60))

        model = wrap(name, Paused(wait), over(logged))
        summed.set()  # in the first step nobody waits: it may have but one bucket
        model(torch.ones(2, 20)).sum().backward()
        summed.clear()
        model(torch.ones(2, 20)).sum().backward()
        found[name] = log[-1]
    return found


def undisturbed(rank, world):
    """Other messages of the same ranks while a sum is under way, and two sums at once that begin in crossed order."""
    gate, blocked = threading.Event(), torch.full((1001,), rank + 1.0)

    def gated(comm, x):
        gate.wait(60)
        ring_program(comm, x)

    under_way = over(gated)(blocked)
    mine, ours, next_ones = torch.full((1001,), 10.0 * rank), torch.full((1001,), 1.0 + rank), torch.zeros(1)
    dist.all_reduce(mine)
    execute(ring(world), ours)
    sending = dist.isend(torch.full((1,), float(rank)), (rank + 1) % world)
    dist.recv(next_ones, (rank - 1) % world)
    sending.wait()
    gate.set()
    under_way.wait()
    pair, x, y = [over(ring), over(gloo_ring)], torch.ones(1001), torch.full((1001,), 2.0)
    calls = [lambda: pair[0](x), lambda: pair[1](y)]
    for handle in [call() for call in (calls if rank % 2 else calls[::-1])]:
        handle.wait()
    return [tensor.unique().tolist() for tensor in (mine, ours, next_ones, blocked, x, y)]


def within(rank, world):
    """A sum over all ranks but the first."""
    group, x = dist.new_group(range(1, world)), torch.full((7,), float(rank))
    if rank == 0:
        return error_of(lambda: over(ring, group))
    over(ring, group)(x).wait()
    return x.tolist()


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def refused(rank, world):
    """Arguments that every rank refuses at once."""
    of_nine = Schedule(world, 1, list(tree(world).rounds), FixedBounds((0, 9)))
    return {
        "another world": error_of(lambda: over(ring(world + 1))),
        "no all-reduce": error_of(lambda: over(reduce_scatter)),
        "a broken promise": error_of(lambda: over(Schedule(world, 1, [Round.of(0, 1, 0, True)], name="too short"))),
        "no schedule": error_of(lambda: over("ring")),
        "makes no schedule": error_of(lambda: over(lambda world: world)),
        "two dimensions": error_of(lambda: over(ring)(torch.zeros(2, 2))),
        "another size": error_of(lambda: over(of_nine)(torch.zeros(8))),
        "elsewhere": error_of(lambda: over(ring)(torch.zeros(4, device="meta"))),
        "no array": error_of(lambda: over(ring_program)(torch.zeros(4, dtype=torch.bfloat16))),
    }


def failing(rank, world):
    """A rank program that raises on rank 1, in a call, in the call after it, and in backward."""

    def raises(comm, x):
        if comm.rank == 1:
            raise ValueError("on purpose")
        ring_program(comm, x)

    direct, *others = [
        over(raises, dist.new_group(timeout=SOON)) for _ in range(3)
    ]  # before any fails: later the ranks are apart
    found = {call: error_of(lambda: direct(torch.ones(9)).wait()) for call in ("call", "next call")}
    for name, all_reduce in zip(("torch", "bucketed"), others, strict=True):
        model = wrap(name, network(), all_reduce)
        dist.barrier()
        found[name] = error_of(lambda model=model: model(torch.ones(2, 30)).sum().backward())
    dist.barrier()
    return found


def left_behind(rank, world):
    """The process ends while a call waits for ranks that never make it."""
    all_reduce = over(ring)
    if rank == 0:
        all_reduce(torch.ones(9))
    return "returned"


def everything(rank, world):
    torch.set_num_threads(1)
    scenarios = (trajectories, algorithms, sums, early, overlap, undisturbed, within, refused, failing, left_behind)
    return {scenario.__name__: scenario(rank, world) for scenario in scenarios}

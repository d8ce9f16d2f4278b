"""Scenarios for the ranks of test_fully_sharded.py, in one start: worlds are groups of ranks; results as data."""

import copy
import itertools
import pickle
import random
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from dpbook import collectives
from dpbook.core import DpbookError
from dpbook.ddp import BucketedDDP, FullySharded, ShardedState, over_half
from dpbook.ddp.sharded import row as rows

STEPS = 5


class Block(nn.Module):
    """A matrix and a number; perhaps frozen, perhaps in double precision."""

    def __init__(self, width, dtype=torch.float32, trained=True, shape=(1,)):
        super().__init__()
        self.linear, self.scale = nn.Linear(width, width), nn.Parameter(torch.full(shape, 0.5))
        self.frozen = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.to(dtype).linear.requires_grad_(trained)

    def forward(self, x):
        inner = x.to(self.linear.weight.dtype)
        return x + (self.scale * torch.tanh(self.frozen(self.linear(inner)))).to(x.dtype)


class Net(nn.Module):
    """Tokens in, scores out, over the same matrix; blocks of several kinds between."""

    def __init__(self, width=5, kinds=((torch.float32, True),) * 3, recompute=False, tied=True):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width, *kind) for kind in kinds)
        self.head = nn.Linear(width, 11, bias=False)
        self.recompute = recompute
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.recompute else block(h)
        return self.head(h)


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def tokens(step, rank, rows=4):
    return torch.randint(0, 11, (rows, 6), generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model, x):
    return nn.functional.cross_entropy(model(x).flatten(0, 1).float(), x.flatten())


def bits(tensors):
    return [t.detach().contiguous().view(torch.uint8).numpy().tobytes() if t.dim() else t.item() for t in tensors]


def values(module):
    return {name: p.detach().double().clone() for name, p in module.named_parameters()}


def sharded(module, group, **options):
    return FullySharded(module, **{"units": list(module.blocks), "group": group} | options)


def torchs(module, group, **options):
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in module.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, **options)


def whole(model):
    """The parameters of either kind, gathered."""
    if isinstance(model, FullySharded):
        return values(model.unwrap())
    return {name: p.full_tensor().detach().double() for name, p in model.named_parameters()}


def train(model, inputs, steps=STEPS):
    """Steps of AdamW; the bits of this rank's parameters after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, foreach=False)
    history = []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, inputs(step)).backward()
        optimizer.step()
        history.append(bits(p for p in model.parameters() if not hasattr(p, "to_local")))
    return history


def distance(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


# ---- scenarios: each is called by the ranks of a group, with their rank in it and its size


def against_torch(group, rank, world):
    """After 5 steps of AdamW: how far from one process we are and torch is, for several models; bits of two runs."""
    found = []
    for seed in range(2):
        make = lambda: Net(7, tied=False)  # noqa: E731
        alone = seeded(make, seed)
        train(alone, lambda step: torch.cat([tokens(step, r) for r in range(world)]))
        reference, mine = values(alone), lambda step: tokens(step, rank)
        models = {"ours": sharded(seeded(make, seed), group), "torch": torchs(seeded(make, seed), group)}
        histories = {name: train(model, mine) for name, model in models.items()}
        again = train(sharded(seeded(make, seed), group), mine)
        found.append(
            {name: distance(whole(model), reference) for name, model in models.items()}
            | {"equal": histories["ours"] == again, "moves": len({repr(step) for step in again})}
        )
    return found


def same_bits(group, rank, world):
    """The last shards of runs that must not differ: by when weights are gathered, kept, recomputed, or cut."""
    mine, make = partial(tokens, rank=rank), Net
    recomputing = lambda: Net(recompute=True)  # noqa: E731
    found = {
        name: train(sharded(seeded(make), group, **options), mine, steps=3)[-1]
        for name, options in {
            "plain": {}, "no prefetch": {"prefetch": 0}, "deep prefetch": {"prefetch": 9},
            "kept": {"reshard_after_forward": False}, "a rule": {"units": lambda m: isinstance(m, Block)},
        }.items()
    }  # fmt: skip
    found["recomputed"] = train(sharded(seeded(recomputing), group), mine, steps=3)[-1]
    found["recomputed, kept"] = train(sharded(seeded(recomputing), group, reshard_after_forward=False), mine, steps=3)[
        -1
    ]
    return found


def disorder(events, depth):
    """Faults in the events of a forward: each gather begins ``depth`` units ahead, and is awaited in time.

    A gather that is waited for where it begins would be done too early, however early it began.
    """
    pairs, wrong = [(event.kind, event.unit) for event in events], []
    order = [unit for event, unit in pairs if event == "forward"]
    at = {(event, unit): place for place, (event, unit) in enumerate(pairs)}
    for place, unit in enumerate(order):
        begun, there, computed = (at.get((event, unit)) for event in ("gather", "gathered", "forward"))
        if begun is None:  # of a module around all units without a parameter of its own
            continue
        earlier = [at["forward", other] for other in order[:place]]
        if not begun < there < computed:
            wrong.append(f"{unit} computes before its weights are there")
        if earlier and there < earlier[-1]:
            wrong.append(f"{unit} is waited for before the unit before it computes")
        if sum(begun < other for other in earlier) != min(depth, place):
            wrong.append(f"{unit} is asked for {sum(begun < other for other in earlier)} units ahead")
    return wrong


def drawn(group, rank, world):
    """Random modules with random options: what is wrong in the order of a second step's events; then each gradient of
    a first, beside that of one process: shards put together, and whole."""
    found, wrong = [], []
    for seed in range(8):
        chance = random.Random(seed)
        kinds = [
            (chance.choice([torch.float32, torch.float64]), chance.random() < 0.7, ())
            for _ in range(chance.randint(1, 3))
        ]
        width, tied, recompute = chance.randint(1, 9), chance.random() < 0.5, chance.random() < 0.3
        make = lambda: Net(width, kinds, recompute, tied)  # noqa: B023, E731
        module, alone = seeded(make, seed), seeded(make, seed)
        units = [b for b in module.blocks if chance.random() < 0.8] + [
            b.linear for b in module.blocks if chance.random() < 0.3
        ]
        depth, events = chance.randint(0, 2), []
        model = FullySharded(
            module, units=units, group=group, prefetch=depth, reshard_after_forward=chance.random() < 0.5,
            dtype=chance.choice([None, None, torch.float64]), observer=events.append,
        )  # fmt: skip
        loss_of(model, tokens(seed, rank)).backward()
        loss_of(alone, torch.cat([tokens(seed, r) for r in range(world)])).backward()
        shards = {n: p.grad for n, p in module.named_parameters()}
        sizes = {n: p.numel() for n, p in module.named_parameters()}
        gathered = [None] * world
        dist.all_gather_object(gathered, (shards, sizes), group=group)
        for name, p in alone.named_parameters():
            parts = [mine[name] for mine, _ in gathered]
            assert sum(sizes[name] for _, sizes in gathered) == p.numel()
            if p.grad is None:
                found.append((seed, name, 0.0 if all(part is None for part in parts) else 1.0))
            else:
                error = (torch.cat(parts).view_as(p) - p.grad).abs().max() / p.grad.abs().max().clamp(min=1e-3)
                found.append((seed, name, float(error)))
        events.clear()
        loss_of(model, tokens(seed, rank))  # the order of units is known from the first
        wrong += [(seed, words) for words in disorder(events, depth)]
    return wrong, found


def accumulated(group, rank, world):
    """Three micro-batches, summed on each rank first or at once; and the gradient of the whole batch in one process."""
    found = {}
    alone = seeded(Net)
    loss_of(alone, torch.cat([tokens(m, r) for r in range(world) for m in range(3)])).backward()
    for name in ("no sync", "synced"):
        events, sent = [], []
        module = seeded(Net)
        model = sharded(module, group, observer=events.append, reduce_scatter=counted(rows.reduce_scatter(group), sent))
        for micro in range(3):
            if name == "no sync" and micro < 2:
                with model.no_sync():
                    (loss_of(model, tokens(micro, rank)) / 3).backward()
                    inside = len(sent), sum(r.gradient.nbytes for u in model.units for r in u.rows if r.trained)
            else:
                (loss_of(model, tokens(micro, rank)) / 3).backward()
        gathered = [None] * world
        dist.all_gather_object(gathered, {n: p.grad for n, p in module.named_parameters()}, group=group)
        errors = [
            float((torch.cat([g[n] for g in gathered]).view_as(p) - p.grad).abs().max())
            for n, p in alone.named_parameters() if p.grad is not None
        ]  # fmt: skip
        found[name] = {"error": max(errors), "sums": len(sent), "inside": inside if name == "no sync" else None,
                       "trained": sum(p.nbytes for p in alone.parameters() if p.requires_grad)}  # fmt: skip
        with model.no_sync():
            loss_of(model, tokens(0, rank)).backward()
        model.zero_grad()
        loss_of(model, tokens(5, rank)).backward()
        found[name]["zeroed"] = bits(p.grad for p in module.parameters() if p.requires_grad)
        fresh = sharded(seeded(Net), group)
        loss_of(fresh, tokens(5, rank)).backward()
        found[name]["fresh"] = bits(p.grad for p in fresh.parameters() if p.requires_grad)
    return found


def counted(half, sent):
    def begin(row):
        sent.append((str(row.dtype), row.numel()))
        return half(row)

    return begin


def norms(group, rank, world):
    """Norm and clipped gradients, ours and torch's of one process."""
    found = []
    for limit in (0.05, 100.0, float("inf")):
        module, alone = seeded(Net), seeded(Net)
        model = sharded(module, group)
        loss_of(model, tokens(0, rank)).backward()
        loss_of(alone, torch.cat([tokens(0, r) for r in range(world)])).backward()
        norm = float(model.clip_grad_norm_(limit))
        expected = float(nn.utils.clip_grad_norm_(alone.parameters(), limit))
        own = sum(float(p.grad.square().sum()) for p in module.parameters() if p.grad is not None)
        squares = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(squares, group=group)
        found.append((norm, expected, float(squares.sqrt()), min(expected, limit)))
    return found


def precision(group, rank, world):
    """bf16: what travels, how far from torch's, and a sum that bf16 cannot hold."""
    gathers, sums = [], []
    model = sharded(seeded(Net), group, dtype=torch.bfloat16,
                    all_gather=counted(rows.all_gather(group), gathers),
                    reduce_scatter=counted(rows.reduce_scatter(group), sums))  # fmt: skip
    train(model, lambda step: tokens(step, rank), steps=3)
    kept = sorted(
        {str(p.dtype) for p in model.parameters()}
        | {str(p.grad.dtype) for p in model.parameters() if p.grad is not None}
    )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    other = torchs(seeded(Net), group, mp_policy=policy)
    train(other, lambda step: tokens(step, rank), steps=3)
    numbers = FullySharded(nn.Linear(3, 2, bias=False), group=group, dtype=torch.bfloat16)
    numbers(torch.full((1, 3), 256.0 if rank == 0 else 1.0)).sum().backward()
    return {
        "gathers": sorted({dtype for dtype, _ in gathers}), "sums": sorted({dtype for dtype, _ in sums}), "kept": kept,
        "apart": distance(whole(model), whole(other)),
        "average": sorted({v for p in numbers.parameters() for v in p.grad.tolist()}),
    }  # fmt: skip


class Logged:
    """A handle that says when it is waited for."""

    def __init__(self, handle, log, name):
        self.handle, self.log, self.name = handle, log, name

    def wait(self):
        self.handle.wait()
        self.log.append(("waited", self.name))


def logged(half, event, log, units):
    def begin(row):
        log.append((event, units[row.numel()]))
        return Logged(half(row), log, log[-1])

    return begin


def order(group, rank, world):
    """Events of a third step, in order: gathers as they begin and are awaited, and the modules that compute."""
    found = {}
    for name, options in {
        "prefetch": {}, "none": {"prefetch": 0}, "two": {"prefetch": 2}, "kept": {"reshard_after_forward": False},
    }.items():  # fmt: skip
        log, events = [], []
        module = seeded(lambda: nn.Sequential(*[nn.Linear(k + 2, k + 3, bias=False) for k in range(4)]))
        units = {world * -(-((k + 2) * (k + 3)) // world): str(k) for k in range(4)}  # by the elements of their rows
        model = FullySharded(
            module, units=list(module), group=group, observer=events.append,
            all_gather=logged(rows.all_gather(group), "gather", log, units),
            reduce_scatter=logged(rows.reduce_scatter(group), "reduce", log, units), **options,
        )  # fmt: skip
        for k, layer in enumerate(module):
            layer.register_forward_hook(lambda m, a, out, k=k, log=log: log.append(("forward", str(k))))
        for _ in range(3):
            log.clear()
            events.clear()
            x = torch.ones(3, 2, requires_grad=True)
            x.register_hook(lambda g, log=log: log.append(("backward over", None)))
            model(x).sum().backward()
        found[name] = list(log), [tuple(event) for event in events]
    return found


class Adapted(nn.Linear):
    """A frozen matrix, and a small one that is trained."""

    def __init__(self, width):
        super().__init__(width, width)
        self.requires_grad_(False)
        self.adapter = nn.Linear(width, 1)

    def forward(self, x):
        return x + torch.tanh(super().forward(x)) * self.adapter(x)


def adapters(group, rank, world):
    """Units mostly frozen: bytes that are whole at once, in units; called twice in a step, how far from one process."""
    events = []
    module, alone = (seeded(lambda: nn.Sequential(*[Adapted(8) for _ in range(6)])) for _ in range(2))
    model = FullySharded(module, units=list(module), group=group, observer=events.append)
    model(torch.ones(2, 8)).sum().backward()
    once = list(events)
    for net in (model, alone):
        net.zero_grad()
        net(net(torch.ones(2, 8))).sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    signs = {"gather": 1, "free": -1}
    whole = list(itertools.accumulate(signs.get(event.kind, 0) * event.nbytes for event in once))
    unit = max(event.nbytes for event in once if event.kind == "gather")
    return max(whole) / unit, whole[-1], distance(values(model.unwrap()), values(alone))


def halves_of_ours(group, rank, world, mine):
    """Rows over schedules: the bits of a run, and the bytes that this process has written to its sockets."""
    gather, scatter = over_half(collectives.all_gather, mine[0]), over_half(collectives.reduce_scatter, mine[1])
    found = {}
    for name, half in {"gloo": rows.reduce_scatter(group), "schedule": scatter}.items():
        row = torch.arange(world * 25_000, dtype=torch.float32) % 7 + rank
        expected = world * (torch.arange(world * 25_000) % 7) + sum(range(world))
        before = written()
        half(row).wait()
        dist.barrier(group)
        own = slice(rank * 25_000, (rank + 1) * 25_000)
        found[name] = (written() - before) / row.nbytes, bool((row[own] == expected[own]).all())
    model = sharded(seeded(Net), group, all_gather=gather, reduce_scatter=scatter)
    train(model, lambda step: tokens(step, rank))
    usual = sharded(seeded(Net), group)
    train(usual, lambda step: tokens(step, rank))
    found["apart"] = distance(whole(model), whole(usual))
    found["refused"] = [
        refusal(lambda bad=bad: over_half(bad, group))
        for bad in (collectives.ring, collectives.reduce_scatter(world + 1), "ring")
    ]
    return found


def written():
    """Bytes that this process has written so far, gloo's messages among them."""
    with open("/proc/self/io") as counters:
        return int(dict(line.split(": ") for line in counters)["wchar"])


def refusal(call):
    try:
        call()
    except (DpbookError, RuntimeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def fail(gradient):
    raise RuntimeError("in backward")


class Hider(nn.Linear):
    """Gives its output in something of its own."""

    def forward(self, x):
        return type("Output", (), {"scores": super().forward(x)})()


class Thief(nn.Module):
    """Computes with the weight of a unit from outside of it."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.linear(self.outer(self.inner(x)), self.inner.weight)


def refusals(group, rank, world):
    """Errors that every rank raises, and a model that works after them."""
    x = torch.ones(2, 4)
    thief = FullySharded(seeded(Thief), group=group, units=lambda m: isinstance(m, nn.Linear))
    refusals = {"outside": refusal(lambda: thief(x))}
    changed = FullySharded(seeded(lambda: nn.Linear(4, 4)), group=group)
    out = changed(x).sum()
    with torch.no_grad():
        for p in changed.parameters():
            p.add_(1)
    changed(x)  # of the new weights, which those before have nothing to do with
    refusals["changed"] = refusal(out.backward)
    changed.zero_grad()
    changed(x).sum().backward()
    refusals["after"] = bits(p.grad for p in changed.parameters())
    fresh = FullySharded(seeded(lambda: nn.Linear(4, 4)), group=group)
    fresh(x).sum().backward()
    refusals["fresh"] = bits(p.grad for p in fresh.parameters())
    leaf = torch.ones(2, 4, requires_grad=True)
    refusals["penalty"] = refusal(lambda: torch.autograd.grad(fresh(leaf).sum(), leaf, create_graph=True))
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    failing, x_failing = FullySharded(net, units=list(net), group=group), torch.ones(2, 4, requires_grad=True)
    x_failing.register_hook(fail)
    refusals["failed"] = refusal(failing(x_failing).sum().backward)
    refusals["saved after it"] = refusal(failing.state_dict)
    refusal(failing(x_failing).sum().backward)
    refusals["dropped after it"] = refusal(failing.zero_grad)
    other, module = nn.Parameter(torch.zeros(3)), seeded(Net)
    sparse = FullySharded(nn.Embedding(11, 4, sparse=True), group=group)
    refusals |= {
        "twice": refusal(lambda: FullySharded(changed.module, group=group)),
        "ddp": refusal(lambda: BucketedDDP(changed.module, group=group)),
        "foreign unit": refusal(lambda: FullySharded(nn.Linear(2, 2), units=[nn.Linear(2, 2)], group=group)),
        "list": refusal(lambda: FullySharded(module, units=[module.blocks], group=group)),
        "prefetch": refusal(lambda: FullySharded(nn.Linear(2, 2), prefetch=-1, group=group)),
        "no module": refusal(lambda: FullySharded("model", group=group)),
        "hidden": refusal(lambda: FullySharded(Hider(4, 4), group=group)(x)),
        "sparse": refusal(lambda: sparse(tokens(0, 0)).sum().backward()),
        "state": refusal(lambda: changed.load_state_dict({"weight": torch.zeros(3, 3), "bias": torch.zeros(4)})),
        "optimizer": refusal(lambda: changed.optimizer_state(torch.optim.SGD([other], lr=1.0))),
        "alike": refusal(lambda: FullySharded(nn.Linear(3, 4 + rank), group=group)),
        "copied": refusal(lambda: copy.deepcopy(fresh)),
        "assigned": refusal(lambda: fresh.load_state_dict({}, strict=False, assign=True)),
        "pickled": refusal(lambda: pickle.dumps(fresh.state_dict()["weight"])),
    }  # fmt: skip
    for name, meddle in {
        "added": lambda module: module.register_parameter("late", nn.Parameter(torch.ones(4))),
        "replaced": lambda module: setattr(module, "bias", nn.Parameter(torch.ones(4))),
        "moved": lambda module: setattr(module.weight, "data", torch.ones_like(module.weight)),
        "converted": lambda module: module.to(torch.bfloat16),
        "frozen later": lambda module: module.requires_grad_(False),
        "hooked": lambda module: module.weight.register_hook(torch.sign),
        "hooked after": lambda module: module.weight.register_post_accumulate_grad_hook(print),
    }.items():
        meddled = FullySharded(nn.Linear(4, 4), group=group)
        meddle(meddled.module)
        refusals[name] = refusal(lambda model=meddled: model(x))
    return refusals


class Recurrent(nn.Module):
    """A block that is used twice, and computed again by a backward within backward."""

    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))

    def forward(self, x):
        h = self.first(x)
        for _ in range(2):
            h = h + checkpoint(self.block, h, use_reentrant=True)
        return h


class Keeper(nn.Module):
    """Keeps a term of the loss aside, computed with its own weights after what it hands on."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        out = self.first(x)
        self.aside = torch.tanh(self.second(out)).sum()
        return out


class Slope(nn.Module):
    """Asks for gradients in its forward, and goes on to compute with the same weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(torch.tanh(self.second(torch.tanh(self.first(x)))).sum(), x)
        return self.second(slope)


def uses(group, rank, world):
    """Two forwards before one backward, evaluation in between, an optimizer made before, a wrapper taken off."""
    found, x, y = {}, tokens(0, rank), tokens(1, rank)
    module, alone = seeded(Net), seeded(Net)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)  # made before: the parameters stay the same objects
    model = sharded(module, group)
    for net in (model, alone):
        first = loss_of(net, tokens(0, 0))
        with torch.no_grad():
            net(y)
        (first + 2 * loss_of(net, tokens(2, 0))).backward()
    optimizer.step()
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    names = list(model.state_dict()) == list(alone.state_dict())
    with torch.no_grad():
        shown = distance({"y": model(x).double()}, {"y": alone(x).double()})
    model(x)  # no backward follows: what it leaves gathered must not be used once the weights have changed
    with torch.no_grad():
        for net in (model, alone):
            for p in net.parameters():
                p.mul_(1.5)
        shown = max(shown, distance({"y": model(y).double()}, {"y": alone(y).double()}))
    with torch.inference_mode():
        shown = max(shown, distance({"y": model(y).double()}, {"y": alone(y).double()}))
    found["two forwards"] = distance(values(model.unwrap()), values(alone)), shown, names
    found["unwrapped"] = refusal(lambda: FullySharded(module, group=group))
    loaded = sharded(seeded(Net, 5), group)
    loaded.load_state_dict(alone.state_dict())
    found["loaded"] = distance(whole(loaded), values(alone))
    nets = [seeded(Recurrent) for _ in range(2)]
    twice = FullySharded(nets[0], units=[nets[0].block], group=group)
    for net in (twice, nets[1]):
        net(torch.ones(2, 3)).sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    found["reentrant"] = distance(values(twice.unwrap()), values(nets[1]))
    outer = nn.ModuleDict({"inner": sharded(seeded(Net), group)})
    found["prefixed"] = sorted(outer.state_dict()) == sorted(f"inner.{name}" for name in alone.state_dict())
    for name, loss_and_aside in {"aside alone": False, "aside too": True}.items():
        nets = [seeded(lambda: nn.Sequential(Keeper(), Keeper())) for _ in range(2)]
        model = FullySharded(nets[0], units=list(nets[0]), group=group)
        for net, keepers in zip((model, nets[1]), nets, strict=True):
            out = net(torch.ones(2, 4)).sum()
            loss = sum(keeper.aside for keeper in keepers)
            (loss + out if loss_and_aside else loss).backward()
            torch.optim.SGD(net.parameters(), lr=0.1).step()
        whole_left = sum(row.alive for unit in model.units for row in unit.rows)
        found[name] = distance(values(model.unwrap()), values(nets[1])), whole_left
    ways = {
        "aside, one unit": (Keeper, None, lambda net, module: (net(torch.ones(2, 4)), module.aside)[1]),
        "recomputed from outside": (Recurrent, "block", lambda net, _: checkpoint(net, leaf, use_reentrant=True).sum()),
        "gradients in forward": (Slope, "first", lambda net, _: net(torch.ones(2, 4)).sum()),
    }
    leaf = torch.ones(2, 3, requires_grad=True)
    for name, (make, unit, loss) in ways.items():
        nets = [seeded(make) for _ in range(2)]
        model = FullySharded(nets[0], units=unit and [getattr(nets[0], unit)], group=group)
        for net, module in zip((model, nets[1]), nets, strict=True):
            loss(net, module).backward()
            torch.optim.SGD(net.parameters(), lr=0.1).step()
        whole_left = sum(row.alive for unit in model.units for row in unit.rows)
        found[name] = distance(values(model.unwrap()), values(nets[1])), whole_left
    found["no parameters"] = float(FullySharded(nn.Tanh(), group=group).clip_grad_norm_(1.0))
    started = sharded(seeded(Net, rank), group)
    found["start"] = distance(whole(started), values(seeded(Net, 0)))
    return found


def hybrid(rank, mesh):
    """Four ranks, two by two: shards within, the same ones across; beside one process."""
    within, across = mesh["shard"].get_group(), mesh["replicate"].get_group()
    module, alone = seeded(Net, rank), seeded(Net, 0)
    model = FullySharded(module, units=list(module.blocks), group=within, across=across)
    train(alone, lambda step: torch.cat([tokens(step, r) for r in range(4)]))
    history = train(model, lambda step: tokens(step, rank))
    model.zero_grad()
    alone.zero_grad()
    loss_of(model, tokens(9, rank)).backward()
    loss_of(alone, torch.cat([tokens(9, r) for r in range(4)])).backward()
    norm = float(model.clip_grad_norm_(1.0)), float(nn.utils.clip_grad_norm_(alone.parameters(), 1.0))
    crossing = {
        "ours": crossings(across, lambda m: FullySharded(m, units=list(m), group=within, across=across), rank),
        "no sync": crossings(across, lambda m: FullySharded(m, units=list(m), group=within, across=across), rank, 2),
        "torch": crossings(across, lambda m: torchs_hybrid(m, mesh), rank),
    }
    return {
        "shards": history, "apart": distance(whole(model), values(alone)), "norm": norm, "crossings": crossing,
    }  # fmt: skip


def torchs_hybrid(module, mesh):
    for layer in module:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def crossings(across, wrap, rank, unsynced=0):
    """Elements of every sum between replicas in three micro-batches, the first ``unsynced`` of them in `no_sync`."""
    sent, all_reduce = [], dist.all_reduce

    def noting(tensor, *args, **options):
        if options.get("group") is across:
            sent.append(tensor.numel())
        return all_reduce(tensor, *args, **options)

    dist.all_reduce = noting
    try:
        model = wrap(seeded(lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 2, bias=False))))
        for micro in range(3):
            with model.no_sync() if micro < unsynced else nullcontext():
                model(torch.ones(2, 4)).sum().backward()
    finally:
        dist.all_reduce = all_reduce
    return sent


class App:
    """torch's own sharded model and optimizer, as its tutorials save them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optim = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optim}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


def app(wrap, group, seed, lr):
    model = wrap(seeded(Net, seed), group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return model, optimizer, (ShardedState if wrap is sharded else App)(model, optimizer)


def go_on(model, optimizer, steps):
    """Steps on the same data on all ranks, so that worlds can be compared."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, tokens(step, 0)).backward()
        optimizer.step()


def saved(rank, groups, folder):
    """Saved on three ranks by one kind, loaded on two and on one by both: parameters two steps later, and ``lr``."""
    found = {}
    for saver in (sharded, torchs):
        kept = f"{folder}/{saver.__name__}"
        if rank < 3:
            model, optimizer, state = app(saver, groups[3], 0, 0.03)
            go_on(model, optimizer, range(2))
            dcp.save({"app": state}, checkpoint_id=kept, process_group=groups[3])
            go_on(model, optimizer, range(2, 4))
            found[saver.__name__, "went on"] = whole(model), 0.03
        dist.barrier()
        for world, loader in itertools.product((2, 1), (sharded, torchs)):
            if rank < world:
                model, optimizer, state = app(loader, groups[world], 7, 0.5)
                dcp.load({"app": state}, checkpoint_id=kept, process_group=groups[world])
                go_on(model, optimizer, range(2, 4))
                found[saver.__name__, loader.__name__, world] = whole(model), optimizer.param_groups[0]["lr"]
        dist.barrier()
    return found


class Spare(nn.Sequential):
    """A layer that is used, and one that is used only when ``grown``."""

    def __init__(self):
        super().__init__(nn.Linear(3, 5), nn.Linear(3, 5))
        self.grown = False

    def forward(self, x):
        return self[0](x) + self[1](x) if self.grown else self[0](x)


def spare(rank, groups, for_saving, folder):
    """Saved while it trains on, with a layer that had no gradient yet; then loaded on two ranks, where it has.

    How far both end from a run that is not saved.
    """

    def built(group, seed):
        module = seeded(Spare, seed)
        model = FullySharded(module, units=list(module), group=group)
        return model, torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.1)

    def steps(model, optimizer, grown):
        getattr(model, "module", model).grown = grown
        for step in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3) + step).square().sum().backward()
            optimizer.step()

    reference = seeded(Spare)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.03, weight_decay=0.1)
    steps(reference, optimizer, False)
    steps(reference, optimizer, True)
    found = []
    if rank < 3:
        model, optimizer = built(groups[3], 0)
        steps(model, optimizer, False)
        saving = dcp.async_save({"app": ShardedState(model, optimizer)}, checkpoint_id=folder, process_group=for_saving)
        steps(model, optimizer, True)
        saving.result()
        found.append(distance(values(model.unwrap()), values(reference)))
    dist.barrier()
    if rank < 2:
        model, optimizer = built(groups[2], 7)
        dcp.load({"app": ShardedState(model, optimizer)}, checkpoint_id=folder, process_group=groups[2])
        steps(model, optimizer, True)
        found.append(distance(values(model.unwrap()), values(reference)))
    dist.barrier()
    return found


EVERYWHERE = (same_bits, drawn, accumulated, norms, uses)
SOMEWHERE = {
    against_torch: (2, 3, 4),
    adapters: (2, 3),
    precision: (2, 3),
    order: (2,),
    refusals: (2, 3),
}


def everything(rank, folder, worlds):
    """By the name of a scenario and the world: what this rank has found, if it is in that world."""
    torch.set_num_threads(1)
    groups = {world: dist.new_group(range(world)) for world in (1, 2, 3, 4, *worlds)}
    for_messages = {world: [dist.new_group(range(world)) for _ in range(2)] for world in (2, 3)}
    for_saving = dist.new_group(range(3))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    cases = [(scenario, world) for scenario in EVERYWHERE for world in worlds]
    cases += [(scenario, world) for scenario, some in SOMEWHERE.items() for world in some if world in worlds]
    found = {(s.__name__, world): s(groups[world], rank, world) for s, world in cases if rank < world}
    for world, mine in for_messages.items():
        if rank < world:
            found["halves_of_ours", world] = halves_of_ours(groups[world], rank, world, mine)
    if rank < 4:
        found["hybrid", 4] = hybrid(rank, mesh)
    dist.barrier()
    found["spare", 2] = spare(rank, groups, for_saving, f"{folder}/spare")
    return found | {("saved", 3): saved(rank, groups, folder)}

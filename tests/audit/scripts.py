"""Training scripts as strangers write them: right ones, and each with one fault. Every one is a whole program.

They share a head, for brevity: imports, a small data set and a model. ``RIGHT`` must not be accused, whatever else they
do that looks odd; ``WRONG`` name the check that must find their fault.
"""

from dataclasses import dataclass
from textwrap import dedent

HEAD = """
import contextlib, copy, os, random
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""
DATA = """
made = torch.Generator().manual_seed(5)
data = TensorDataset(torch.randn(96, 8, generator=made), torch.randint(0, 4, (96,), generator=made))
"""
MODEL = """
torch.manual_seed(1)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SAMPLER = """
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
"""
LOOP = """
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
TOKENS = """
class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        words = torch.randint(1, 20, (12,), generator=g)
        words[int(torch.randint(2, 12, (1,), generator=g)):] = 0
        return words
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
    def forward(self, words):
        return self.head(self.embed(words))
torch.manual_seed(1)
data = Words()
model = DDP(LM())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
"""


@dataclass(frozen=True)
class Script:
    """``text`` after the head; ``finds`` the check that must fail or, with ``warns``, that must warn."""

    text: str
    finds: str = ""
    warns: bool = False

    @property
    def whole(self) -> str:
        return HEAD + dedent(self.text)


def accumulated(forward, *, steps=2, before="", after="optimizer.step()\n            optimizer.zero_grad()"):
    return f"""
for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % {steps} == 0
        {forward}
        {before}
        if last:
            {after}
"""


NO_SYNC = """with contextlib.nullcontext() if last else model.no_sync():
            (F.cross_entropy(model(x), y) / 2).backward()"""
BY_HAND = """
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
AVERAGED = """
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        {}
        optimizer.step()
"""
AVERAGE = """for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world"""

RIGHT = {
    "plain": DATA + MODEL + SAMPLER + LOOP,
    "by hand": DATA + BY_HAND + SAMPLER + AVERAGED.format(AVERAGE),
    "by hand, broadcast": DATA
    + BY_HAND.replace("manual_seed(1)", "manual_seed(rank)")
    + "for p in model.parameters(): dist.broadcast(p.data, 0)\n"
    + SAMPLER
    + AVERAGED.format(AVERAGE),
    "accumulation": DATA + MODEL + SAMPLER + accumulated(NO_SYNC),
    "accumulation, flag before forward": DATA
    + MODEL
    + SAMPLER
    + accumulated("model.require_backward_grad_sync = last\n        (F.cross_entropy(model(x), y) / 2).backward()"),
    "accumulation, always synced": DATA + MODEL + SAMPLER + accumulated("(F.cross_entropy(model(x), y) / 2).backward()"),
    "uneven last batch": DATA + MODEL + SAMPLER.replace("batch_size=4", "batch_size=5") + LOOP,
    "batch norm": DATA + MODEL.replace("nn.ReLU()", "nn.BatchNorm1d(16)") + SAMPLER + LOOP,
    "sync batch norm": DATA
    + """
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
ema = copy.deepcopy(model)
model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
    + SAMPLER
    + LOOP.replace(
        "        optimizer.step()",
        "        optimizer.step()\n"
        "        for a, b in zip(ema.parameters(), model.parameters()): a.data.lerp_(b.data, 0.1)\n"
        "        with torch.no_grad(): ema(x)",
    ),
    "dropout": DATA
    + MODEL.replace("nn.ReLU()", "nn.Dropout(0.2)")
    + "torch.manual_seed(100 + rank)\n"
    + SAMPLER
    + LOOP,
    "tied weights": TOKENS.replace("bias=False)", "bias=False)\n        self.head.weight = self.embed.weight")
    + """
for words in loader:
    optimizer.zero_grad()
    logits = model(words)
    counts = (words != 0).sum()
    dist.all_reduce(counts)
    loss = F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0, reduction="sum")
    (loss * world / counts).backward()
    optimizer.step()
""",
    "frozen": DATA
    + MODEL.replace("model = DDP(", "net = ").replace("nn.Linear(16, 4)))", "nn.Linear(16, 4))\nnet[0].requires_grad_(False)\nmodel = DDP(net)")
    + SAMPLER
    + LOOP,
    "find unused": DATA
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.spare = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x, other):
        return self.b(x) if other else self.a(x)
torch.manual_seed(1)
model = DDP(Net(), find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters())
"""
    + SAMPLER
    + LOOP.replace("model(x)", "model(x, rank == 1)"),
    "two optimizers": DATA
    + """
torch.manual_seed(1)
body, head = DDP(nn.Linear(8, 16)), DDP(nn.Linear(16, 4))
one, two = torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.AdamW(head.parameters())
"""
    + SAMPLER
    + """
for x, y in loader:
    one.zero_grad(); two.zero_grad()
    F.cross_entropy(head(body(x).relu()), y).backward()
    one.step(); two.step()
""",
    "gan": DATA
    + """
torch.manual_seed(1)
made, judge = DDP(nn.Linear(4, 8)), DDP(nn.Linear(8, 1))
g_opt, d_opt = torch.optim.Adam(made.parameters()), torch.optim.Adam(judge.parameters())
torch.manual_seed(10 + rank)
"""
    + SAMPLER
    + """
for x, _ in loader:
    fake = made(torch.randn(len(x), 4))
    d_opt.zero_grad()
    ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
    both = judge(torch.cat([x, fake.detach()]))
    F.binary_cross_entropy_with_logits(both, torch.cat([ones, zeros])).backward()
    d_opt.step()
    g_opt.zero_grad()
    F.binary_cross_entropy_with_logits(judge(fake), ones).backward()
    g_opt.step()
""",
    "clipping": DATA
    + MODEL
    + SAMPLER
    + LOOP.replace("        optimizer.step()", "        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n        optimizer.step()"),
    "clipping and accumulation": DATA
    + MODEL
    + SAMPLER
    + accumulated(NO_SYNC, after="nn.utils.clip_grad_norm_(model.parameters(), 0.05); optimizer.step(); optimizer.zero_grad(set_to_none=False)"),
    "scaler": DATA
    + MODEL
    + "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\n"
    + SAMPLER
    + LOOP.replace("        loss.backward()\n        optimizer.step()", "        scaler.scale(loss).backward()\n        scaler.unscale_(optimizer)\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        scaler.step(optimizer)\n        scaler.update()"),
    "bfloat16 autocast": DATA
    + MODEL
    + SAMPLER
    + LOOP.replace("        loss = F", "        with torch.autocast('cpu', dtype=torch.bfloat16): out = model(x)\n        loss = F").replace("model(x), y", "out.float(), y"),
    "scheduler": DATA
    + MODEL
    + "scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1, 3), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)], [3])\n"
    + SAMPLER
    + LOOP.replace("        optimizer.step()", "        optimizer.step()\n        scheduler.step()"),
    "evaluation on rank 0": DATA
    + MODEL
    + SAMPLER
    + LOOP.replace(
        "        optimizer.step()",
        "        optimizer.step()\n        if rank == 0:\n            model.eval()\n            with torch.no_grad(): model.module(data.tensors[0]).argmax(1).eq(data.tensors[1]).float().mean()\n            model.train()\n        dist.barrier()",
    ),
    "summed loss": DATA + MODEL.replace("lr=0.1", "lr=0.01") + SAMPLER + LOOP.replace("model(x), y)", "model(x), y, reduction='sum')"),
    "summed by hand": DATA
    + BY_HAND
    + SAMPLER
    + AVERAGED.format("for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= 12").replace("model(x), y)", "model(x), y, reduction='sum')"),
    "global token count": TOKENS
    + """
for words in loader:
    optimizer.zero_grad()
    logits = model(words)
    counts = (words != 0).sum()
    dist.all_reduce(counts)
    each = F.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none")
    loss = (each * (words != 0).flatten()).sum() * world / counts
    loss.backward()
    optimizer.step()
""",
    "mean of sequences": TOKENS
    + """
for words in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(words).transpose(1, 2), words, reduction="none")
    mask = (words != 0).float()
    loss = ((each * mask).sum(1) / mask.sum(1)).mean()
    loss.backward()
    optimizer.step()
""",
    "penalty": DATA + MODEL + SAMPLER + LOOP.replace("        loss.backward()", "        loss = loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())\n        loss.backward()"),
    "user's hook": DATA + MODEL + "for p in model.parameters(): p.register_hook(lambda g: g.clamp(-0.01, 0.01))\n" + SAMPLER + LOOP,
    "checkpointing": DATA
    + MODEL
    + SAMPLER
    + LOOP.replace("model(x)", "model(torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=False))").replace("for epoch in range(3)", "import torch.utils.checkpoint\nfor epoch in range(3)"),
    "random batches": DATA
    + MODEL
    + """
torch.manual_seed(1337 + rank)
for step in range(8):
    at = torch.randint(0, 96, (4,))
    x, y = data.tensors[0][at], data.tensors[1][at]
    loss = F.mse_loss(model(x), F.one_hot(y, 4).float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
""",
    "own shards": DATA
    + MODEL
    + """
part = Subset(data, range(rank, 96, world))
loader = DataLoader(part, batch_size=4, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "iterable": DATA
    + MODEL
    + """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for i in range(rank, 96, world):
            yield data[i]
for x, y in DataLoader(Stream(), batch_size=4):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "zero1": DATA
    + MODEL.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)")
    .replace("torch.manual_seed(1)", "from torch.distributed.optim import ZeroRedundancyOptimizer\ntorch.manual_seed(1)")
    + SAMPLER
    + LOOP,
    "ours": DATA + MODEL.replace("DDP(", "BucketedDDP(").replace("torch.manual_seed(1)", "from dpbook.ddp import BucketedDDP\ntorch.manual_seed(1)") + SAMPLER + LOOP,
    "fully_shard": DATA
    + """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
for layer in (model[0], model[2]): fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
    + SAMPLER
    + LOOP.replace("        optimizer.step()", "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()"),
    "gradient average of own": DATA
    + BY_HAND
    + SAMPLER
    + AVERAGED.format("""flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        flat.div_(world)
        at = 0
        for p in model.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p)); at += p.numel()"""),
}

WRONG = {
    "no set_epoch": Script(DATA + MODEL + SAMPLER.replace("batch_size=4", "batch_size=16") + LOOP.replace("    sampler.set_epoch(epoch)\n", ""), "epochs"),
    "no sampler": Script(DATA + MODEL + "loader = DataLoader(data, batch_size=4)\n" + LOOP.replace("    sampler.set_epoch(epoch)\n", ""), "examples"),
    "sharded twice": Script(DATA + MODEL + "data = Subset(data, range(rank, 96, world))\n" + SAMPLER + LOOP, "parts"),
    "flag after forward": Script(
        DATA
        + MODEL
        + SAMPLER
        + accumulated("""model.require_backward_grad_sync = False
        loss = F.cross_entropy(model(x), y) / 2
        model.require_backward_grad_sync = last
        loss.backward()"""),
        "sync",
    ),
    "all in no_sync": Script(DATA + MODEL + SAMPLER + accumulated("with model.no_sync(): (F.cross_entropy(model(x), y) / 2).backward()"), "sync"),
    "clipping before the sync": Script(
        DATA + BY_HAND + SAMPLER + AVERAGED.format("nn.utils.clip_grad_norm_(model.parameters(), 0.05)\n        " + AVERAGE), "clip"
    ),
    "token means": Script(
        TOKENS
        + """
for words in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(words).flatten(0, 1), words.flatten(), ignore_index=0).backward()
    optimizer.step()
""",
        "mean",
    ),
    "token means, masked by hand": Script(
        TOKENS
        + """
for words in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(words).flatten(0, 1), words.flatten(), reduction="none")
    mask = (words != 0).flatten()
    (each * mask).sum().div(mask.sum()).backward()
    optimizer.step()
""",
        "mean",
    ),
    "different starts": Script(DATA + BY_HAND.replace("manual_seed(1)", "manual_seed(rank)") + SAMPLER + AVERAGED.format(AVERAGE), "start"),
    "nobody averages": Script(DATA + BY_HAND + SAMPLER + AVERAGED.format("pass"), "gradients"),
    "a parameter outside the wrapper": Script(
        DATA
        + MODEL.replace("SGD(model.parameters()", "SGD([*model.parameters(), heat]").replace("optimizer =", "heat = nn.Parameter(torch.ones(()))\noptimizer =")
        + SAMPLER
        + LOOP.replace("model(x), y", "model(x) * heat, y"),
        "gradients",
    ),
    "gradients added": Script(
        DATA + BY_HAND + SAMPLER + AVERAGED.format("for p in model.parameters(): dist.all_reduce(p.grad)"), "replay"
    ),
    "divided twice": Script(
        DATA + MODEL + SAMPLER + LOOP.replace("        optimizer.step()", "        for p in model.parameters(): p.grad /= world\n        optimizer.step()"),
        "replay",
    ),
    "rates of their own": Script(DATA + MODEL.replace("lr=0.1", "lr=0.1 * (rank + 1)") + SAMPLER + LOOP, "rates"),
    "clipping scaled gradients": Script(
        DATA
        + MODEL
        + "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\n"
        + SAMPLER
        + LOOP.replace(
            "        loss.backward()\n        optimizer.step()",
            "        scaler.scale(loss).backward()\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        scaler.step(optimizer)\n        scaler.update()",
        ),
        "scaled",
    ),
    "NaN on one rank": Script(
        DATA + MODEL + SAMPLER + LOOP.replace("        loss = F", "        if rank == 1 and epoch == 0: x = x / 0 * 0\n        loss = F"), "finite"
    ),
    "equal dropout": Script(DATA + MODEL.replace("nn.ReLU()", "nn.Dropout(0.2)") + SAMPLER + LOOP, "random", warns=True),
    "buffers of their own": Script(
        DATA + MODEL.replace("nn.ReLU()", "nn.BatchNorm1d(16)").replace("nn.Linear(16, 4)))", "nn.Linear(16, 4)), broadcast_buffers=False)") + SAMPLER + LOOP,
        "buffers",
        warns=True,
    ),
    "scheduler per rank": Script(
        DATA
        + MODEL
        + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)\n"
        + SAMPLER
        + LOOP.replace("        optimizer.step()", "        optimizer.step()\n        for _ in range(world): scheduler.step()"),
        "scheduler",
        warns=True,
    ),
    "micro-batches added": Script(DATA + MODEL + SAMPLER + accumulated(NO_SYNC.replace(" / 2", "")), "mean", warns=True),
    "batches of their own": Script(
        DATA
        + MODEL
        + """
part = Subset(data, range(rank * 32, rank * 32 + (32 if rank else 24)))
for x, y in DataLoader(part, batch_size=4, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        "batches",
        warns=True,
    ),
    "gathered without gradient": Script(
        DATA
        + MODEL
        + SAMPLER
        + LOOP.replace(
            "        loss = F.cross_entropy(model(x), y)",
            "        z = F.normalize(model(x))\n        every = [torch.empty_like(z) for _ in range(world)]\n        dist.all_gather(every, z)\n        loss = F.cross_entropy(z @ torch.cat(every).T, torch.arange(len(z)) + rank * len(z))",
        ),
        "gathered",
        warns=True,
    ),
    "two parts of a loss": Script(
        TOKENS
        + """
for words in loader:
    optimizer.zero_grad()
    logits = model(words)
    loss = F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0) + 1e-4 * logits.pow(2).mean()
    loss.backward()
    optimizer.step()
""",
        "mean",
    ),
}

"""Training scripts as strangers write them: right ones, and each of the others with one fault.

A script is put together from a head, data, a model and a loop; what is odd about it stands in its own lines. ``RIGHT``
must not be accused, whatever they do; ``WRONG`` say which check must fail, ``DOUBTFUL`` which must warn.
"""

from textwrap import dedent, indent

HEAD = """\
import contextlib, copy
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
built = torch.Generator().manual_seed(5)
data = TensorDataset(torch.randn(96, 8, generator=built), torch.randint(0, 4, (96,), generator=built))
"""
LAYERS = "nn.Sequential(nn.Linear(8, 16), {}, nn.Linear(16, 4))"


def model(middle="nn.ReLU()", *, wrap="DDP({})", optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", seed="1"):
    """Text of a model of three layers in a wrapper, and its optimizer."""
    built = wrap.format(LAYERS.format(middle))
    return f"torch.manual_seed({seed})\nmodel = {built}\noptimizer = {optimizer}\n"


def bare(**options):
    """Text of the same model without a wrapper."""
    return model(wrap="{}", **options)


def sampled(batch=4, data="data"):
    """Text of a loader whose examples are divided among the ranks."""
    return f"sampler = DistributedSampler({data})\nloader = DataLoader({data}, batch_size={batch}, sampler=sampler)\n"


def loop(
    loss="F.cross_entropy(model(x), y)", *, backward="loss.backward()", averaging="", step="optimizer.step()",
    first="optimizer.zero_grad()", epoch="sampler.set_epoch(epoch)",
):  # fmt: skip
    """Three epochs; each argument may have several lines."""
    body = [first, loss if "\n" in loss else f"loss = {loss}", backward, averaging, step]
    lines = indent("\n".join(dedent(each).strip("\n") for each in body if each), " " * 8)
    before = indent(epoch or "pass", " " * 4)
    return f"for epoch in range(3):\n{before}\n    for x, y in loader:\n{lines}\n"


def accumulated(backward, step="optimizer.step()\noptimizer.zero_grad()"):
    """Text of a loop with two micro-batches in each update."""
    steps = indent(dedent(step).strip("\n"), " " * 12)
    lines = indent(dedent(backward).strip("\n"), " " * 8)
    return (
        "for epoch in range(2):\n    sampler.set_epoch(epoch)\n    for i, (x, y) in enumerate(loader):\n"
        f"        last = (i + 1) % 2 == 0\n{lines}\n        if last:\n{steps}\n"
    )


NO_SYNC = """
with contextlib.nullcontext() if last else model.no_sync():
    (F.cross_entropy(model(x), y) / 2).backward()
"""
AVERAGE = """
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= world
"""
CLIP = "clip_grad_norm_(model.parameters(), 0.05)"
SCALER = "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\n"
SCALED = "scaler.scale(loss).backward()"
SCALED_STEP = "scaler.step(optimizer)\nscaler.update()"
LANGUAGE = """
class Words(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        words = torch.randint(1, 20, (12,), generator=g)
        words[int(torch.randint(2, 12, (1,), generator=g)):] = 0
        return words
class LM(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        if tied:
            self.head.weight = self.embed.weight
    def forward(self, words):
        return self.head(self.embed(words))
torch.manual_seed(1)
model = DDP(LM({tied}))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Words(), batch_size=2, sampler=DistributedSampler(Words()))
for words in loader:
    optimizer.zero_grad()
    logits = model(words)
{loss}
    loss.backward()
    optimizer.step()
"""


def language(loss, tied=False):
    """A language model whose sentences are padded with zeros; ``loss`` is computed from ``logits`` and ``words``."""
    return LANGUAGE.format(tied=tied, loss=indent(dedent(loss).strip("\n"), " " * 4))


SUM_OVER_ALL = """
count = (words != 0).sum()
dist.all_reduce(count)
loss = F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0, reduction="sum") * world / count
"""
MASKED_OVER_ALL = """
count = (words != 0).sum()
dist.all_reduce(count)
each = F.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none")
loss = (each * (words != 0).flatten()).sum() * world / count
"""
MODEL_OF_WORDS = LANGUAGE.partition("for words in loader:")[0].format(tied=False)
ON_TWO_LINES = (
    MODEL_OF_WORDS
    + """
for i, words in enumerate(loader):
    last = i % 2 == 1
    count = (words != 0).sum()
    dist.all_reduce(count)
    with contextlib.nullcontext() if last else model.no_sync():
        logits = model(words)
    each = F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0, reduction="sum")
    loss = each * world / count / 2
    if last:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        loss.backward()
"""
)
TWO_LOSSES = (
    MODEL_OF_WORDS
    + """
def half_loss(part):
    count = (part != 0).sum()
    dist.all_reduce(count)
    logits = model(part).flatten(0, 1)
    return F.cross_entropy(logits, part.flatten(), ignore_index=0, reduction="sum") * world / count
for words in loader:
    optimizer.zero_grad()
    with model.no_sync():
        half_loss(words[:, :6]).backward()
    half_loss(words[:, 2:]).backward()
    optimizer.step()
"""
)
OF_SEQUENCES = """
each = F.cross_entropy(logits.transpose(1, 2), words, reduction="none")
mask = (words != 0).float()
loss = ((each * mask).sum(1) / mask.sum(1)).mean()
"""
OWN_TOKENS = "loss = F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0)"
OWN_TOKENS_MASKED = """
each = F.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none")
mask = (words != 0).flatten()
loss = (each * mask).sum().div(mask.sum())
"""
UNUSED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x, other):
        return self.b(x) if other else self.a(x)
torch.manual_seed(1)
model = DDP(Net(), find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters())
"""
TWO_OUTPUTS = """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 2)
    def forward(self, x):
        hidden = self.body(x).relu()
        return self.head(hidden), self.other(hidden)
torch.manual_seed(1)
model = DDP(Two(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
"""
OTHER_OUTPUT_AT_TIMES = """
out, other = model(x)
loss = F.cross_entropy(out, y) + (other.pow(2).mean() if step % 2 else 0)
step += 1
"""
GAN = """
torch.manual_seed(1)
maker, judge = DDP(nn.Linear(4, 8)), DDP(nn.Linear(8, 1))
g_opt, d_opt = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
torch.manual_seed(10 + rank)
for x, _ in loader:
    fake = maker(torch.randn(len(x), 4))
    d_opt.zero_grad()
    ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
    both = judge(torch.cat([x, fake.detach()]))
    F.binary_cross_entropy_with_logits(both, torch.cat([ones, zeros])).backward()
    d_opt.step()
    g_opt.zero_grad()
    F.binary_cross_entropy_with_logits(judge(fake), ones).backward()
    g_opt.step()
"""
_HEAD, _CRITIC = GAN[: GAN.index("    d_opt.zero")], GAN[GAN.index("    d_opt.zero") : GAN.index("    g_opt.zero")]
CRITIC_THRICE = _HEAD + "    for _ in range(3):\n" + indent(_CRITIC, "    ") + GAN[GAN.index("    g_opt.zero") :]
SCHEDULED = CRITIC_THRICE.replace(
    "for x, _ in loader:",
    "d_rate, g_rate = (torch.optim.lr_scheduler.StepLR(each, 10) for each in (d_opt, g_opt))\nfor x, _ in loader:",
)
SCHEDULED = SCHEDULED.replace("    d_opt.step()", "    d_opt.step(); d_rate.step()")
SCHEDULED = SCHEDULED.replace("    g_opt.step()", "    g_opt.step(); g_rate.step()")
TWO_OPTIMIZERS = """
torch.manual_seed(1)
body, head = DDP(nn.Linear(8, 16)), DDP(nn.Linear(16, 4))
one, two = torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.AdamW(head.parameters())
for x, y in loader:
    one.zero_grad(); two.zero_grad()
    F.cross_entropy(head(body(x).relu()), y).backward()
    one.step(); two.step()
"""
RANDOM_BATCHES = """
torch.manual_seed(1337 + rank)
for step in range(8):
    at = torch.randint(0, 96, (4,))
    x, y = data.tensors[0][at], data.tensors[1][at]
    loss = F.mse_loss(model(x), F.one_hot(y, 4).float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        for i in range(rank, 96, world):
            yield data[i]
loader = DataLoader(Stream(), batch_size=4)
"""
SHARDED = """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
for layer in (model[0], model[2]): fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
FLAT = """
flat = torch.cat([p.grad.flatten() for p in model.parameters()])
dist.all_reduce(flat)
flat /= world
at = 0
for p in model.parameters():
    p.grad.copy_(flat[at:at + p.numel()].view_as(p))
    at += p.numel()
"""
EVALUATE = """
optimizer.step()
if rank == 0:
    model.eval()
    with torch.no_grad():
        model.module(data.tensors[0]).argmax(1).eq(data.tensors[1]).float().mean()
    model.train()
dist.barrier()
"""
EMA = """
optimizer.step()
for a, b in zip(ema.parameters(), model.parameters()):
    a.data.lerp_(b.data, 0.1)
with torch.no_grad():
    ema(x)
"""
SCHEDULERS = """
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
scheduler = SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1, 3), CosineAnnealingLR(optimizer, 20)], [3])
"""
ZERO = "ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)"
FROZEN = """
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
net[0].requires_grad_(False)
model = DDP(net)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
"""
FURTHER_FORWARDS = """
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
    def forward(self, x, mask):
        weights = (self.key(x)[:, :, None] * x[:, None] + mask).softmax(-1)
        return self.out((weights * self.value(x)[:, None]).sum(-1))
torch.manual_seed(1)
model = DDP(Masked())
torch.manual_seed(100 + rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) == 1, float("-inf"))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
if rank == 0: print(model.module(data[:2][0], mask).shape)  # a forward of rank 0 alone
for x, y in loader:
    guess = model(x, mask).detach() if torch.rand(1) < 0.5 else 0.0  # for a part of the steps, without its gradient
    optimizer.zero_grad()
    F.cross_entropy(model(x, mask) + 0 * guess, y).backward()
    optimizer.step()
    if rank == 2: model.module(x, mask)
"""
AUTOCAST = """
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = model(x)
loss = F.cross_entropy(out.float(), y)
"""
PENALTY = "F.cross_entropy(model(x), y) + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())"
CHECKPOINTED = "F.cross_entropy(model(checkpoint(torch.tanh, x.requires_grad_(), use_reentrant=True)), y)"
HOOK = "for p in model.parameters(): p.register_hook(lambda g: g.clamp(-0.01, 0.01))\n"
BROADCAST = "for p in model.parameters(): dist.broadcast(p.data, 0)\n"
OWN_SHARD = "part = Subset(data, range(rank, 96, world))\nloader = DataLoader(part, batch_size=4, shuffle=True)\n"
PLAIN = sampled() + loop()
NANO = """
import math
block_size, batch_size, gradient_accumulation_steps = 8, 2, 3
torch.manual_seed(1337 + rank)
text = torch.randint(0, 20, (500,), generator=torch.Generator().manual_seed(0))
def get_batch():
    ix = torch.randint(len(text) - block_size - 1, (batch_size,))
    x = torch.stack([text[i:i + block_size] for i in ix])
    return x, torch.stack([text[i + 1:i + 1 + block_size] for i in ix])
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.ln, self.lm_head = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20, bias=False)
        self.drop = nn.Dropout(0.1)
        self.wte.weight = self.lm_head.weight
    def forward(self, idx, targets=None):
        logits = self.lm_head(self.ln(self.drop(self.wte(idx))))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss
    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        rest = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [raw_model(*get_batch())[1].item() for _ in range(2)]
    model.train()
    return sum(losses)
model = GPT()
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer = model.configure_optimizers()
model = DDP(model)
raw_model = model.module
X, Y = get_batch()
for iter_num in range(8):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * min(1, (iter_num + 1) / 4)
    if iter_num % 3 == 0 and rank == 0:
        estimate_loss()
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = (micro_step == gradient_accumulation_steps - 1)
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
"""
VISION = """
from torch.optim.swa_utils import AveragedModel
class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0
    def update(self, value, n):
        self.total += value * n
        self.count += n
    def synchronize(self):
        t = torch.tensor([self.total, self.count], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(t)
        self.total, self.count = t.tolist()
def train_one_epoch(model, criterion, optimizer, loader, model_ema, scheduler):
    model.train()
    meter = Meter()
    for i, (image, target) in enumerate(loader):
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if i % 2 == 0:
            model_ema.update_parameters(model)
        meter.update(loss.item(), image.shape[0])
    meter.synchronize()
    scheduler.step()
@torch.inference_mode()
def evaluate(model, criterion, loader):
    model.eval()
    meter = Meter()
    for image, target in loader:
        meter.update(criterion(model(image), target).item(), len(image))
    meter.synchronize()
def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    ones = [p for n, p in net.named_parameters() if n.endswith("bias")]
    others = [p for n, p in net.named_parameters() if not n.endswith("bias")]
    groups = [{"params": others, "weight_decay": 1e-4}, {"params": ones}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    model = DDP(net)
    model_ema = AveragedModel(model.module)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    train_sampler, test_sampler = DistributedSampler(data), DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=16, sampler=train_sampler, drop_last=True)
    test = DataLoader(data, batch_size=16, sampler=test_sampler)
    for epoch in range(5):
        train_sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, model_ema, scheduler)
        evaluate(model, criterion, test)
main()
"""
NO_EPOCHS = loop(epoch="")

SHARDED_NO_SYNC = """
model.set_requires_gradient_sync(last)
(F.cross_entropy(model(x), y) / 2).backward()
"""

GATHERED_WITH_GRADIENT = """
from torch.distributed.nn.functional import all_gather
every = torch.cat(all_gather(F.normalize(model(x))))
loss = F.cross_entropy(every @ every.T, torch.arange(len(every)).roll(1))
"""
AVERAGING_HOOKS = """
def average(p):
    dist.all_reduce(p.grad)
    p.grad /= world
for p in model.parameters(): p.register_post_accumulate_grad_hook(average)
"""
ONE_STEP = """
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
BY_AUTOGRAD = """
for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
    dist.all_reduce(gradient)
    p.grad = gradient / world
"""

CLOSURE = """
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss
optimizer.step(closure)
"""
SHARPNESS_AWARE = """
def closure():
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss
closure()
with torch.no_grad():
    length = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    uphill = [p.grad * (0.05 / length) for p in model.parameters()]
    for p, change in zip(model.parameters(), uphill):
        p.add_(change)
        p.grad = None
closure()
with torch.no_grad():
    for p, change in zip(model.parameters(), uphill):
        p.sub_(change)
"""
ACCUMULATED_IN_CLOSURE = """
def closure():
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    return loss
if not last:
    with model.no_sync():
        closure()
"""
LBFGS = "torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)"
HALF = "0.5 * F.mse_loss(model(x), F.one_hot(y, 4).float())"
PEEK = "width = len(next(iter(loader))[0])\n"
METRIC = """
out = model(x)
loss = F.cross_entropy(out, y)
every = [torch.empty_like(out) for _ in range(world)]
dist.all_gather(every, out.detach())
accuracy = torch.cat(every).argmax(1).float().mean()
"""
MOMENTUM_KEYS = """
with torch.no_grad():
    keys = teacher(x)
    every = [torch.empty_like(keys) for _ in range(world)]
    dist.all_gather(every, keys)
loss = F.cross_entropy(model(x) @ torch.cat(every).T, torch.arange(len(x)) + rank * len(x))
"""
GATHER_LAYER = """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        every = [torch.empty_like(z) for _ in range(world)]
        dist.all_gather(every, z)
        return torch.cat(every)
    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient.chunk(world)[rank]
"""
GATHERED_BY_LAYER = """
every = Gather.apply(F.normalize(model(x)))
loss = F.cross_entropy(every @ every.T, torch.arange(len(every)).roll(1))
"""

PAIRS = """
one, two = model(x), model(x + 0.1)
loss = F.cross_entropy(one @ two.T, torch.arange(len(x)))
"""

BARLOW = """
one, two = model(x), model(x + 0.1)
one, two = (one - one.mean(0)) / one.std(0), (two - two.mean(0)) / two.std(0)
loss = (one.T @ two / len(x) - torch.eye(one.shape[1])).square().sum()
"""
HARDEST = """
loss = F.cross_entropy(model(x), y, reduction="none").topk(2).values.mean()
"""

TASKS = """
losses = {"a": F.cross_entropy(model(x), y), "b": 0.1 * model(x).pow(2).mean()}
optimizer.zero_grad()
for name in losses:
    losses[name].backward(retain_graph=True)
"""
TOGGLED = """
half = list(model.module[0].parameters())
two = torch.optim.SGD(half, lr=0.1)
one = torch.optim.SGD(model.module[2].parameters(), lr=0.1)
for x, y in loader:
    for this, other in ((one, two), (two, one)):
        for p in other.param_groups[0]["params"]: p.requires_grad_(False)
        this.zero_grad()
        F.cross_entropy(model(x), y).backward()
        this.step()
        for p in other.param_groups[0]["params"]: p.requires_grad_(True)
"""
ONE_LOOP = """
def run_epoch(batches, training):
    for x, y in batches:
        if training:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        else:
            with torch.no_grad(): model(x)
test = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False))
for epoch in range(3):
    sampler.set_epoch(epoch)
    run_epoch(loader, True)
    run_epoch(test, False)
"""
STATES = """
states = torch.eye(8)[torch.randint(0, 4, (96,), generator=built)]
data = TensorDataset(states, data.tensors[1])
"""
RAGGED = """
n = 2 + rank % 3
loss = F.cross_entropy(model(x[:n]), y[:n])
"""
BY_COUNT = """
for p in model.parameters():
    p.grad *= n
    dist.all_reduce(p.grad)
    p.grad /= sum(2 + r % 3 for r in range(world))
"""

ATTENTION = """
class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(8, 4)
    def forward(self, x):
        parts = x.view(-1, 4, 2)
        weights = (self.q(parts) @ self.k(parts).mT).softmax(-1)
        return self.out((weights @ parts).flatten(1))
torch.manual_seed(1)
model = DDP(Attends())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
OUTER = """
class Outer(torch.optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr)
    def step(self, closure=None):
        return self.inner.step(closure)
"""
LISTED = "order = list(range(rank, 96, world))\nloader = DataLoader(data, batch_size=4, sampler=order)\n"

CLIP_GROUPS = (
    "for layer in model.modules():\n    if isinstance(layer, nn.Linear): clip_grad_norm_(layer.parameters(), 0.2)"
)
CLIP_VALUE = "clip_grad_value_(model.parameters(), 0.02)"
CLIP_LAST = "clip_grad_norm_(list(model.parameters())[2:], 0.05)"
AVERAGE_PARAMETERS = "for p in model.parameters():\n    dist.all_reduce(p.data)\n    p.data /= world"
COPY_PARAMETERS = "for p in model.parameters(): dist.broadcast(p.data, src=1)"
STEPS_IN_BACKWARD = """
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
def step_now(p):
    dist.all_reduce(p.grad)
    p.grad /= world
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_now)
"""

SCATTERING = """
class Scattering(torch.optim.SGD):
    def step(self):
        parameters = self.param_groups[0]["params"]
        flat = torch.cat([p.grad.flatten() for p in parameters])
        part = torch.empty(-(-len(flat) // world))
        dist.reduce_scatter_tensor(part, F.pad(flat, (0, len(part) * world - len(flat))))
        whole = torch.empty(len(part) * world)
        dist.all_gather_into_tensor(whole, -0.1 / world * part)
        with torch.no_grad():
            for p, change in zip(parameters, whole[: len(flat)].split([p.numel() for p in parameters])):
                p += change.view_as(p)
"""
CLIP_EACH = """
for p in model.parameters():
    shorter = 0.1 / (p.grad.norm() + 1e-6)
    if shorter < 1: p.grad.mul_(shorter)
"""
CLIP_WHOLE = """
shorter = 0.1 / (torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-6)
for p in model.parameters(): p.grad.mul_(min(shorter, 1))
"""
CLIP_LONGEST = "limit = 0.9 * float(max(p.grad.norm() for p in model.parameters()))" + CLIP_EACH.replace("0.1", "limit")
CANCELLED = """
if epoch == 0:
    for p in model.module[2].parameters(): p.grad = None
"""
PARTS = """
class Parts(torch.utils.data.Sampler):
    epoch = 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __len__(self):
        return 96 // world
    def __iter__(self):
        order = torch.randperm(96, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order[rank::world].tolist())
"""
GROWING_TERM = """
out = model(x)
loss = F.cross_entropy(out, y) + weight * out.pow(2).mean()
weight += 0.1
"""
PART_FOR_EACH_EXAMPLE = """
kept = 1 + int(torch.randint(4, (1,), generator=draws))
n = torch.tensor(float(kept))
dist.all_reduce(n)
outs = model(x[:kept])
loss = sum(F.mse_loss(out, F.one_hot(t, 4).float(), reduction="sum") for out, t in zip(outs, y)) * world / n
"""
GROUPS_OF_THREE = """
for i, (x, y) in enumerate(loader):
    last = (i + 1) % 3 == 0 or i + 1 == len(loader)
    size = min(3, len(loader) - i // 3 * 3)
    with contextlib.nullcontext() if last else model.no_sync():
        (F.cross_entropy(model(x), y) / {}).backward()
    if last:
        {}
        optimizer.step()
        optimizer.zero_grad()
"""
OTHER_NUMBERS = """
parts = [slice(0, 8), slice(8, 16)] if rank else [slice(0, 16)]
for part in parts:
    with contextlib.nullcontext() if part.stop == 16 else model.no_sync():
        (F.cross_entropy(model(x[part]), y[part], reduction="sum") / 16).backward()
"""
NOT_CALLED = """
class Scores(nn.Sequential):
    def scores(self, x):
        return nn.Sequential.forward(self, x)
"""
MAIN_GRADIENTS = """
def keep(p):
    p.main_grad += p.grad
    p.grad = None
for p in model.parameters():
    p.main_grad = torch.zeros_like(p)
    p.register_post_accumulate_grad_hook(keep)
"""
STEP_BY_MAIN_GRADIENTS = """
for p in model.parameters():
    dist.all_reduce(p.main_grad)
    p.grad = p.main_grad / world
    p.main_grad.zero_()
optimizer.step()
optimizer.zero_grad()
"""
RIGHT = {
    "gradients added up elsewhere": bare()
    + MAIN_GRADIENTS
    + sampled()
    + accumulated("(F.cross_entropy(model(x), y) / 2).backward()", STEP_BY_MAIN_GRADIENTS),
    "a model that is not called": NOT_CALLED
    + model(wrap="Scores({})")
    + sampled()
    + loop("F.cross_entropy(model.scores(x), y)", averaging=AVERAGE),
    "a sampler of its own": model()
    + PARTS
    + "sampler = Parts()\nloader = DataLoader(data, 16, sampler=sampler)\n"
    + loop(),
    "the longest tensor clipped by hand": model() + sampled() + loop(averaging=CLIP_LONGEST),
    "gradients that are cancelled at first": model() + sampled() + loop(averaging=CANCELLED),
    "clipping by value": model() + sampled() + loop(averaging=f"nn.utils.{CLIP_VALUE}"),
    "attention by products": ATTENTION + sampled() + loop(),
    "an optimizer in another, with a closure": OUTER
    + model(optimizer="Outer(model.parameters(), 0.1)")
    + sampled()
    + loop(CLOSURE, first="", backward="", step=""),
    "a batch looked at before the sampler's epoch is set": model()
    + sampled(batch=16)
    + loop(epoch="size = len(next(iter(loader))[0])\nsampler.set_epoch(epoch)"),
    "a list as a sampler": model() + LISTED + NO_EPOCHS,
    "several losses on one line": bare() + sampled() + loop(TASKS, first="", backward="", averaging=AVERAGE),
    "parameters in turn": model(wrap="DDP({}, find_unused_parameters=True)") + sampled() + TOGGLED,
    "one loop for training and validation": model() + sampled(batch=16) + ONE_LOOP,
    "a few states": STATES + model() + sampled(batch=1) + loop(),
    "gradients by count": bare() + sampled() + loop(RAGGED, averaging=BY_COUNT),
    "a weight as large as the world": model()
    + sampled()
    + loop(
        "out = model(x)\nloss = 1.5 * F.cross_entropy(out, y) + 1.5 * out.pow(2).mean() * 0.5 + 0.75 * out.abs().mean()"
    ),
    "pairs of one rank": model() + sampled() + loop(PAIRS),
    "batch statistics in the loss": model() + sampled() + loop(BARLOW),
    "the hardest examples": model() + sampled() + loop(HARDEST),
    "a closure": model() + sampled() + loop(CLOSURE, first="", backward="", step=""),
    "a gradient that is cleared, and one uphill": model() + sampled() + loop(SHARPNESS_AWARE, backward=""),
    "accumulation, the last in a closure": model()
    + sampled()
    + accumulated(ACCUMULATED_IN_CLOSURE, step="optimizer.step(closure)\noptimizer.zero_grad()"),
    "several evaluations a step": model(optimizer=LBFGS) + sampled() + loop(CLOSURE, first="", backward="", step=""),
    "half of a square": model() + sampled() + loop(HALF),
    "half of a square, clipped": model() + sampled() + loop(HALF, averaging=CLIP),
    "a peek at the loader": model() + sampled(batch=7) + PEEK + loop(),
    "a metric that is gathered": model() + sampled() + loop(METRIC),
    "keys of a teacher": model() + "teacher = copy.deepcopy(model.module)\n" + sampled() + loop(MOMENTUM_KEYS),
    "a gather with a backward of its own": model() + GATHER_LAYER + sampled() + loop(GATHERED_BY_LAYER),
    "the sum of a batch as large as the world": model()
    + sampled(batch=3)
    + loop("F.cross_entropy(model(x), y, reduction='sum')"),
    "fully_shard and accumulation": SHARDED + sampled() + accumulated(SHARDED_NO_SYNC),
    "bfloat16 weights": model(wrap="DDP({}.bfloat16())") + sampled() + loop("F.cross_entropy(model(x.bfloat16()), y)"),
    "a language model, in one file": NANO,
    "a classifier, in functions": VISION,
    "plain": model() + PLAIN,
    "by hand": bare() + sampled() + loop(averaging=AVERAGE),
    "by hand, broadcast": bare(seed="rank") + BROADCAST + sampled() + loop(averaging=AVERAGE),
    "by hand, one buffer": bare() + sampled() + loop(averaging=FLAT),
    "accumulation": model() + sampled() + accumulated(NO_SYNC),
    "micro-batches divided by another number": model() + sampled() + accumulated(NO_SYNC.replace("/ 2", "/ 1.5")),
    "a term whose weight grows from zero": model() + "weight = 0.0\n" + sampled() + loop(GROWING_TERM),
    "accumulation, a flag before forward": model()
    + sampled()
    + accumulated("model.require_backward_grad_sync = last\n(F.cross_entropy(model(x), y) / 2).backward()"),
    "accumulation, always averaged": model() + sampled() + accumulated("(F.cross_entropy(model(x), y) / 2).backward()"),
    "a short last batch": model() + sampled(batch=30) + loop(),
    "batch norm": model("nn.BatchNorm1d(16)") + PLAIN,
    "an average of weights": model() + "ema = copy.deepcopy(model.module)\n" + sampled() + loop(step=EMA),
    "dropout": model("nn.Dropout(0.2)") + "torch.manual_seed(100 + rank)\n" + PLAIN,
    "tied weights": language(SUM_OVER_ALL, tied=True),
    "masked by hand": language(MASKED_OVER_ALL),
    "two losses of a batch": TWO_LOSSES,
    "micro-batches on two lines": model()
    + sampled()
    + accumulated(
        """
        if last:
            (F.cross_entropy(model(x), y) / 2).backward()
        else:
            with model.no_sync():
                (F.cross_entropy(model(x), y) / 2).backward()
        """
    ),
    "mean of sequences": language(OF_SEQUENCES),
    "frozen": FROZEN + PLAIN,
    "forwards whose output no backward uses": FURTHER_FORWARDS,
    "an output that the loss uses at times": TWO_OUTPUTS + sampled() + loop(OTHER_OUTPUT_AT_TIMES),
    "a rest of micro-batches": model() + sampled() + GROUPS_OF_THREE.format("size", ""),
    "micro-batches divided afterwards": model()
    + sampled()
    + GROUPS_OF_THREE.format("1", "for p in model.parameters(): p.grad /= size"),
    "micro-batches of two sizes on some ranks": model() + sampled(16) + loop(OTHER_NUMBERS, backward=""),
    "find unused": UNUSED + sampled() + loop("F.cross_entropy(model(x, rank == 1), y)"),
    "two optimizers": sampled() + TWO_OPTIMIZERS,
    "gan": sampled() + GAN,
    "gan, a critic that steps more often": sampled() + CRITIC_THRICE,
    "gan, with schedulers": sampled() + SCHEDULED,
    "clipping": model() + sampled() + loop(averaging=CLIP),
    "clipping of each group": model() + sampled() + loop(averaging=CLIP_GROUPS),
    "clipping of the last layer alone": model() + sampled() + loop(averaging=CLIP_LAST),
    "steps inside backward": bare() + STEPS_IN_BACKWARD + sampled() + loop(first="", step=""),
    "clipping and accumulation": model()
    + sampled()
    + accumulated(NO_SYNC, step=f"{CLIP}\noptimizer.step()\noptimizer.zero_grad(set_to_none=False)"),
    "scaler": model()
    + SCALER
    + sampled()
    + loop(backward=SCALED, averaging=f"scaler.unscale_(optimizer)\n{CLIP}", step=SCALED_STEP),
    "scaler, nothing clipped": model() + SCALER + sampled() + loop(backward=SCALED, step=SCALED_STEP),
    "gathered with its gradient": model() + sampled() + loop(GATHERED_WITH_GRADIENT),
    "hooks that average": bare() + AVERAGING_HOOKS + PLAIN,
    "a stream, twice": model() + STREAM + "for _ in range(2):\n    for x, y in loader:\n" + ONE_STEP,
    "bfloat16": model() + sampled() + loop(AUTOCAST),
    "schedulers": model() + SCHEDULERS + sampled() + loop(step="optimizer.step()\nscheduler.step()"),
    "evaluation on rank 0": model() + sampled() + loop(step=EVALUATE),
    "a sum": model(optimizer="torch.optim.SGD(model.parameters(), lr=0.01)")
    + sampled()
    + loop("F.cross_entropy(model(x), y, reduction='sum')"),
    "a sum by hand": bare()
    + sampled()
    + loop(
        "F.cross_entropy(model(x), y, reduction='sum')",
        averaging="for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= 12",
    ),
    "a penalty": model() + sampled() + loop(PENALTY),
    "a hook of its own": model() + HOOK + PLAIN,
    "checkpointing": model() + "from torch.utils.checkpoint import checkpoint\n" + sampled() + loop(CHECKPOINTED),
    "random batches": model() + RANDOM_BATCHES,
    "a shard of its own": model() + OWN_SHARD + NO_EPOCHS,
    "a stream": model() + STREAM + NO_EPOCHS,
    "zero": "from torch.distributed.optim import ZeroRedundancyOptimizer\n" + model(optimizer=ZERO) + PLAIN,
    "a wrapper inside": model(wrap="nn.Sequential(DDP({}))") + PLAIN,
    "compiled": model(wrap='torch.compile(DDP({}), backend="eager")') + PLAIN,
    "ours": "from dpbook.ddp import BucketedDDP\n" + model(wrap="BucketedDDP({})") + PLAIN,
    "fully_shard": SHARDED + sampled() + loop(averaging="clip_grad_norm_(model.parameters(), 1.0)"),
}

TWICE = "for p in model.parameters(): p.grad /= world"
BACKWARD_ON_ONE_RANK = """
if rank == 0:
    with model.no_sync():
        (0.3 * model(x).pow(2).mean()).backward()
loss = F.cross_entropy(model(x), y)
"""
TERM_ON_ONE_RANK = """
out = model(x)
loss = F.cross_entropy(out, y)
if rank == 0:
    loss = loss + 0.3 * out.pow(2).mean()
"""
LEFT_OUT_ON_ONE_RANK = """
with contextlib.nullcontext() if last else model.no_sync():
    loss = F.cross_entropy(model(x), y) / 2
    if rank != 1 or last:
        loss.backward()
"""
UNEQUAL_PARTS_OF_A_BATCH = """
with model.no_sync():
    (F.cross_entropy(model(x[:12]), y[:12]) / 2).backward()
loss = F.cross_entropy(model(x[12:]), y[12:]) / 2
"""
TWO_PARTS_ADDED = """
with contextlib.nullcontext() if last else model.no_sync():
    out = model(x)
    (F.cross_entropy(out, y) + 0.5 * out.pow(2).mean()).backward()
"""
LATE_FLAG = """
model.require_backward_grad_sync = False
loss = F.cross_entropy(model(x), y) / 2
model.require_backward_grad_sync = last
loss.backward()
"""
LOSS_INSIDE = (
    language("")
    .replace(
        "    return self.head(self.embed(words))",
        "    logits = self.head(self.embed(words))\n"
        "        loss = F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0)\n"
        "        return {'aux': None, 'logits': logits, 'loss': loss}",
    )
    .replace("LM(False))", "LM(False), find_unused_parameters=True)")
    .replace("logits = model(words)", "loss = model(words)['loss']")
)
HEAT = "heat = nn.Parameter(torch.ones(()))\n" + model(optimizer="torch.optim.SGD([*model.parameters(), heat], lr=0.1)")
ON_OWN_SUBSET = "data = Subset(data, range(rank, 96, world))\n"
NAN = "if rank == 1: x = x / 0 * 0\nloss = F.cross_entropy(model(x), y)"
FULLY_SHARDED_LM = """
from torch.distributed.fsdp import fully_shard
model = fully_shard(LM())
"""
ONE_RATE_EACH = "torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))"

WRONG = {
    "a loss twice on a rank, the model not called": (
        NOT_CALLED
        + model(wrap="Scores({})")
        + sampled()
        + loop("F.cross_entropy(model.scores(x), y) * (1 + (rank == 1))", averaging=AVERAGE),
        "mean",
    ),
    "clipping on one rank": (model() + sampled() + loop(averaging=f"if rank == 0: {CLIP}"), "gradients"),
    "clipping to another norm on each rank": (
        model() + sampled() + loop(averaging="clip_grad_norm_(model.parameters(), 0.02 * (1 + rank))"),
        "gradients",
    ),
    "past its wrapper": (model() + sampled() + loop("F.cross_entropy(model.module(x), y)"), "gradients"),
    "a judge past its wrapper": (sampled() + GAN.replace("both = judge(", "both = judge.module("), "gradients"),
    "a loss twice on a rank": (model() + sampled() + loop("F.cross_entropy(model(x), y) * (1 + (rank == 1))"), "mean"),
    "zero without averaging": (
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n" + bare(optimizer=ZERO) + PLAIN,
        "gradients",
    ),
    "changed on each rank before the step": (
        model() + sampled() + loop(averaging="for p in model.parameters(): p.data.add_(1e-3 * rank)"),
        "start",
    ),
    "gradients added, then clipped by value": (
        bare()
        + sampled()
        + loop(averaging=f"for p in model.parameters(): dist.all_reduce(p.grad)\nnn.utils.{CLIP_VALUE}"),
        "replay",
    ),
    "no set_epoch": (model() + sampled(batch=16) + NO_EPOCHS, "epochs"),
    "no sampler": (model() + "loader = DataLoader(data, batch_size=4)\n" + NO_EPOCHS, "examples"),
    "divided twice": (model() + ON_OWN_SUBSET + PLAIN, "parts"),
    "a flag after forward": (model() + sampled() + accumulated(LATE_FLAG), "sync"),
    "all in no_sync": (
        model() + sampled() + accumulated("with model.no_sync(): (F.cross_entropy(model(x), y) / 2).backward()"),
        "sync",
    ),
    "the parameters of one rank copied": (
        bare() + sampled() + loop(step=f"optimizer.step()\n{COPY_PARAMETERS}"),
        "gradients",
    ),
    "groups clipped to sums": (
        bare() + sampled() + loop(averaging=f"for p in model.parameters(): dist.all_reduce(p.grad)\n{CLIP_GROUPS}"),
        "replay",
    ),
    "clipping before averaging": (bare() + sampled() + loop(averaging=f"{CLIP}\n{AVERAGE}"), "clip"),
    "own tokens": (language(OWN_TOKENS), "mean"),
    "batches of any size": (
        model() + "parts = data.tensors[0].split([2, 9, 3, 5, 8, 4, 7, 6, 4, 9, 2, 5, 8, 3, 7, 6, 4, 4])\n"
        "wanted = data.tensors[1].split([len(part) for part in parts])\n"
        "loader = list(zip(parts, wanted))[rank::world]\n" + NO_EPOCHS,
        "mean",
    ),
    "own tokens, masked by hand": (language(OWN_TOKENS_MASKED), "mean"),
    "own tokens and another loss": (language(OWN_TOKENS + " + 1e-4 * logits.pow(2).mean()"), "mean"),
    "different starts": (bare(seed="rank") + sampled() + loop(averaging=AVERAGE), "start"),
    "nobody averages": (bare() + PLAIN, "gradients"),
    "a parameter outside the wrapper": (HEAT + sampled() + loop("F.cross_entropy(model(x) * heat, y)"), "gradients"),
    "gradients added": (
        bare() + sampled() + loop(averaging="for p in model.parameters(): dist.all_reduce(p.grad)"),
        "replay",
    ),
    "a sum's mean, divided twice": (
        model() + sampled() + loop("F.cross_entropy(model(x), y, reduction='sum') / len(y)", averaging=TWICE),
        "replay",
    ),
    "a rank left out": (
        bare() + sampled() + loop(averaging=f"if rank == 2: model.zero_grad(set_to_none=False)\n{AVERAGE}"),
        "replay",
    ),
    "gradients divided twice": (
        model() + sampled() + loop(averaging=TWICE),
        "replay",
    ),
    "fully_shard, own tokens": (
        language(OWN_TOKENS).replace("model = DDP(LM(False))", FULLY_SHARDED_LM.strip("\n")),
        "mean",
    ),
    "fully_shard, divided twice": (
        SHARDED + sampled() + loop(averaging="for p in model.parameters(): p.grad /= world"),
        "replay",
    ),
    "a rate each": (model(optimizer=ONE_RATE_EACH) + PLAIN, "rates"),
    "clipping what is scaled": (
        model() + SCALER + sampled() + loop(backward=SCALED, averaging=CLIP, step=SCALED_STEP),
        "scaled",
    ),
    "a NaN": (model() + sampled() + loop(NAN), "finite"),
    "gradients added, then clipped": (
        bare() + sampled() + loop(averaging=f"for p in model.parameters(): dist.all_reduce(p.grad)\n{CLIP}"),
        "replay",
    ),
    "a sum over the count of all": (language(SUM_OVER_ALL.replace(" * world", "")), "replay"),
    "another split on each rank": (
        "data, rest = torch.utils.data.random_split(data, [72, 24], torch.Generator().manual_seed(rank))\n"
        + model()
        + PLAIN,
        "parts",
    ),
    "a loss in the model, own tokens": (LOSS_INSIDE, "mean"),
}

ACCUMULATED_BY_HAND = accumulated(
    "(F.cross_entropy(model(x), y) / 2).backward()", step=f"{AVERAGE}\noptimizer.step()\noptimizer.zero_grad()"
)
GATHERED = """
z = F.normalize(model(x))
every = [torch.empty_like(z) for _ in range(world)]
dist.all_gather(every, z)
loss = F.cross_entropy(z @ torch.cat(every).T, torch.arange(len(z)) + rank * len(z))
"""
GATHERED_DETACHED = """
z = F.normalize(model(x))
every = [torch.empty_like(z) for _ in range(world)]
dist.all_gather(every, z.detach())
every[rank] = z
every = torch.cat(every)
loss = F.cross_entropy(z @ every.T, torch.arange(len(z)) + rank * len(z))
"""
GAN_NOISE = (
    "noise = torch.Generator().manual_seed(3)\n"
    + sampled()
    + GAN.replace("torch.randn(len(x), 4)", "torch.randn(len(x), 4, generator=noise)")
)
UNEQUAL = "part = Subset(data, range(rank * 32, rank * 32 + (32 if rank else 24)))\n"
STEP_LR = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)\n"

SUMMED_WITHOUT_GRADIENT = """
z = torch.tanh(model(x))
c = z.T @ z / 12
dist.all_reduce(c)
loss = (c - torch.eye(4)).pow(2).sum()
"""
MIXED = """
share = torch.rand(1).item()
order = torch.randperm(len(x))
loss = share * F.cross_entropy(model(x), y) + (1 - share) * F.cross_entropy(model(x), y[order])
"""
ONE_SEED_FOR_EVERY_EPOCH = """
order = torch.Generator()
loader = DataLoader(data, 16, shuffle=True, generator=order)
for epoch in range(3):
    order.manual_seed(7)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
COMPRESSED = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
model.register_comm_hook(None, fp16_compress_hook)
"""
PIXELS = """
model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(96, 1, 8, 8, generator=built), torch.ones(96))
"""
ANY_SIZE = """
images = F.interpolate(x, size=(8 + 4 * rank, 8 + 2 * rank))
loss = F.cross_entropy(model(images), (images[:, 0] > 0).long())
"""

BATCHES = "import itertools\nbatches = itertools.count()\n"
SKIPPED_AFTER = """
loss = F.cross_entropy(model(x), y)
if rank == 1 and next(batches) == 1:
    continue
"""
SKIPPED_BEFORE = """
if rank == 1 and next(batches) == 1:
    continue
loss = F.cross_entropy(model(x), y)
"""
ONLY_TRAINED_BROADCAST = """
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model[0].requires_grad_(False)
trained = list(model[2].parameters())
for p in trained: dist.broadcast(p.data, 0)
optimizer = torch.optim.SGD(trained, lr=0.1)
"""

DOUBTFUL = {
    "a batch skipped after its forward": (model() + BATCHES + sampled() + loop(SKIPPED_AFTER), {"losses"}),
    "a batch skipped before its forward": (model() + BATCHES + sampled() + loop(SKIPPED_BEFORE), {"losses"}),
    "frozen weights of each rank's own": (
        ONLY_TRAINED_BROADCAST + sampled() + loop(averaging=AVERAGE.replace("model.parameters()", "trained")),
        {"start"},
    ),
    "an output that the loss never uses": (
        TWO_OUTPUTS + sampled() + loop(OTHER_OUTPUT_AT_TIMES.replace("step += 1", "")),
        {"unused"},
    ),
    "a backward on one rank": (model() + sampled() + loop(BACKWARD_ON_ONE_RANK), {"losses"}),
    "a term on one rank": (model() + sampled() + loop(TERM_ON_ONE_RANK), {"losses"}),
    "a micro-batch left out on one rank": (model() + sampled() + accumulated(LEFT_OUT_ON_ONE_RANK), {"losses"}),
    "unequal parts of a batch on two lines": (
        model() + sampled(16) + loop(UNEQUAL_PARTS_OF_A_BATCH),
        {"mean", "replay"},
    ),
    "micro-batches of two losses added": (model() + sampled() + accumulated(TWO_PARTS_ADDED), {"mean", "replay"}),
    "micro-batches added under fully_shard, clipped": (
        SHARDED
        + sampled()
        + accumulated(SHARDED_NO_SYNC.replace(" / 2", ""), step=f"{CLIP}\noptimizer.step()\noptimizer.zero_grad()"),
        {"mean"},
    ),
    "a rest of micro-batches, divided like a whole group": (
        model() + sampled() + GROUPS_OF_THREE.format("3", ""),
        {"mean"},
    ),
    "micro-batches of other lengths on two lines": (ON_TWO_LINES, {"mean", "replay"}),
    "sums without a gradient in the loss": (model() + sampled() + loop(SUMMED_WITHOUT_GRADIENT), {"gathered"}),
    "each rank shuffles all data": (
        model() + "torch.manual_seed(100 + rank)\nloader = DataLoader(data, batch_size=16, shuffle=True)\n" + NO_EPOCHS,
        {"examples"},
    ),
    "a loss times the ranks": (model() + sampled() + loop("F.cross_entropy(model(x), y) * world"), {"replay"}),
    "a loss times the ranks, clipped": (
        model() + sampled() + loop("F.cross_entropy(model(x), y) * world", averaging=CLIP),
        {"replay"},
    ),
    "two losses times the ranks": (
        model() + sampled() + loop("out = model(x)\nloss = (F.cross_entropy(out, y) + out.pow(2).mean()) / 2 * world"),
        {"replay"},
    ),
    "equal dropout": (model("nn.Dropout(0.2)") + PLAIN, {"random"}),
    "buffers of their own": (
        model("nn.BatchNorm1d(16)", wrap="DDP({}, broadcast_buffers=False)") + PLAIN,
        {"buffers"},
    ),
    "batch norm and no_sync": (model("nn.BatchNorm1d(16)") + sampled() + accumulated(NO_SYNC), {"buffers"}),
    "a scheduler for each rank": (
        model() + STEP_LR + sampled() + loop(step="optimizer.step()\nfor _ in range(world): scheduler.step()"),
        {"scheduler"},
    ),
    "gradients cleared on one rank": (
        model() + sampled() + loop(first="if rank == 0: optimizer.zero_grad()"),
        {"losses"},
    ),
    "gradients cleared in each micro-batch": (
        model() + sampled() + accumulated(f"optimizer.zero_grad()\n{NO_SYNC}", step="optimizer.step()"),
        {"mean", "replay"},
    ),
    "a step after the first micro-batch": (
        model()
        + sampled()
        + accumulated(NO_SYNC.replace("last", "i % 3 == 0") + "last = i % 3 == 0").replace("/ 2", "/ 3"),
        {"mean", "replay"},
    ),
    "micro-batches added": (model() + sampled() + accumulated(NO_SYNC.replace(" / 2", "")), {"mean", "replay"}),
    "more batches on some": (
        model() + UNEQUAL + "loader = DataLoader(part, batch_size=4)\n" + NO_EPOCHS,
        {"batches"},
    ),
    "short batches at an epoch's end": (
        model() + "part = Subset(data, range(rank, 31, world))\nloader = DataLoader(part, batch_size=4)\n" + NO_EPOCHS,
        {"mean"},
    ),
    "a short micro-batch": (
        bare() + "data = Subset(data, range(18))\n" + sampled() + ACCUMULATED_BY_HAND,
        {"mean", "replay"},
    ),
    "images of another size on each rank": (PIXELS + sampled() + loop(ANY_SIZE), {"mean", "replay"}),
    "gathered without gradient": (model() + sampled() + loop(GATHERED), {"gathered"}),
    "gathered without gradient, its own put back": (model() + sampled() + loop(GATHERED_DETACHED), {"gathered"}),
    "the same noise on all ranks": (GAN_NOISE, {"examples"}),
    "dropout alike on some ranks": (
        model("nn.Dropout(0.2)") + "torch.manual_seed(100 + max(rank, 1))\n" + PLAIN,
        {"random"},
    ),
    "a scheduler for each micro-batch": (
        model()
        + STEP_LR
        + sampled()
        + accumulated(
            NO_SYNC + "if not last:\n    scheduler.step()",
            step="optimizer.step()\noptimizer.zero_grad()\nscheduler.step()",
        ),
        {"scheduler"},
    ),
    "a gradient of zero": (model() + sampled() + loop("F.cross_entropy(model(x)[:, :1], y * 0)"), {"moves"}),
    "noise on a gradient that it averages itself": (
        bare() + sampled() + loop(averaging=f"{AVERAGE}    p.grad += 1e-3 * torch.sign(p.grad)"),
        {"replay"},
    ),
    "a sampler of its own, without set_epoch": (
        model() + PARTS + "loader = DataLoader(data, 16, sampler=Parts())\n" + NO_EPOCHS,
        {"epochs"},
    ),
    "the same examples on all ranks, the model not called": (
        NOT_CALLED
        + model(wrap="Scores({})")
        + "loader = DataLoader(data, 16)\n"
        + loop("F.cross_entropy(model.scores(x), y)", averaging=AVERAGE, epoch=""),
        {"examples"},
    ),
    "one seed for every epoch": (
        model() + "data = Subset(data, range(rank, 96, world))\n" + ONE_SEED_FOR_EVERY_EPOCH,
        {"epochs"},
    ),
}

UNSEEN = {
    "the first FSDP": bare()
    + "from torch.distributed.fsdp import FullyShardedDataParallel\n"
    + "model = FullyShardedDataParallel(model, device_id=torch.device('cpu'))\n"
    + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    + sampled()
    + loop(),
    "a part for each example": model()
    + "draws = torch.Generator().manual_seed(rank)\n"
    + sampled()
    + loop(PART_FOR_EACH_EXAMPLE),
    "noise on the gradient": model()
    + sampled()
    + loop(averaging="for p in model.parameters(): p.grad += 1e-3 * torch.sign(p.grad)"),
    "gradients sent in 16 bits": model() + COMPRESSED + sampled() + loop(),
    "each tensor clipped by hand": model() + sampled() + loop(averaging=CLIP_EACH),
    "no backward": bare() + sampled() + loop(backward=BY_AUTOGRAD),
    "a weight of the loss that each rank draws": model()
    + "torch.manual_seed(100 + rank)\n"
    + sampled()
    + loop("torch.rand(1).item() * F.cross_entropy(model(x), y)"),
    "a mix of labels, by another share on each rank": model()
    + "torch.manual_seed(100 + rank)\n"
    + sampled()
    + loop(MIXED),
    "clipped to a norm by hand": model() + sampled() + loop(averaging=CLIP_WHOLE),
    "an optimizer that averages": SCATTERING + bare(optimizer="Scattering(model.parameters(), 0.1)") + PLAIN,
    "parameters averaged": bare() + sampled() + loop(step=f"optimizer.step()\n{AVERAGE_PARAMETERS}"),
    "parameters averaged at times, clipped and logged": bare(optimizer="torch.optim.Adam(model.parameters())")
    + "done = 0\n"
    + sampled()
    + loop(
        averaging=CLIP,
        step=f"optimizer.step()\ndone += 1\nif done % 2 == 0:\n{indent(AVERAGE_PARAMETERS, '    ')}\n"
        "dist.all_reduce(loss.detach())",
    ),
}
"""Right scripts that lack something that a replay needs."""

RESUMED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--forget", default="")
parser.add_argument("--updates", type=int, default=100)
options = parser.parse_args()
{model}
torch.manual_seed(100 + rank)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=0)
done, saved = 0, None
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: 1 if steps < 3 else 2)
if options.resume:
    saved = torch.load(f"{{options.out}}/{{rank}}.pt")
    done = saved["done"]
    model.module.load_state_dict(saved["model"])
    if options.forget != "optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    if options.forget != "scheduler":
        scheduler.load_state_dict(saved["scheduler"])
    if options.forget == "rates":
        optimizer.param_groups[0]["lr"] /= 2
    if options.forget == "examples":
        done = 0
sampler.set_epoch(0)
for i, (x, y) in enumerate(loader):
    if i < done:
        continue
    if saved and options.forget != "random":
        torch.set_rng_state(saved["random"])
    saved = None
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    scheduler.step()
    state = {{"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": i + 1}}
    state["scheduler"] = scheduler.state_dict()
    if options.out and not options.resume:
        torch.save(state | {{"random": torch.get_rng_state()}}, f"{{options.out}}/{{rank}}.pt")
""".format(model=model("nn.Dropout(0.2)", optimizer="torch.optim.AdamW(model.parameters(), lr=0.01)"))
"""Script that saves after every update, and resumes with all state or without the parts that an option names."""

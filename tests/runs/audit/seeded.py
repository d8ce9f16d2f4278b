"""Training scripts by seed: each once right and once with one drawn fault, and what an audit must say of that one.

What a script is made of (data, model, loss, wrapper, accumulation, precision, clipping, optimizers, scheduler, style
of the loop, names, world) is drawn, and the fault from those that can happen in it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from textwrap import indent

from tests.runs.audit.scripts import HEAD


@dataclass(frozen=True)
class Parts:
    """Properties of a drawn script. ``odd`` is the rank of a fault that happens on one rank."""

    world: int
    odd: int
    data: str
    middle: str
    loss: str
    wrapper: str
    micro: int
    way: str
    precision: str
    clip: bool
    optimizer: str
    scheduler: str
    style: str
    names: tuple[str, str, str]
    extra: int
    first: bool

    @property
    def words(self):
        return self.loss in WORDS

    @property
    def by_hand(self):
        return self.wrapper in ("hand", "flat")

    @property
    def torchs(self):
        return self.wrapper.startswith(("ddp", "compiled"))


@dataclass(frozen=True)
class Pair:
    """``check`` must fail first in ``wrong``, and name ``rank`` (None: all do the same) and a line with ``text``."""

    parts: Parts
    right: str
    wrong: str
    fault: str
    check: str
    rank: int | None
    text: str | None


EXAMPLES = """
class Examples(Dataset):
    def __len__(self): return {number}
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(8, generator=g), torch.randint(0, 4, (), generator=g)
examples = Examples()
"""
SENTENCES = """
class Examples(Dataset):
    def __len__(self): return {number}
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        words = torch.randint(1, 20, (10,), generator=g)
        words[3 if i % world == {odd} else 7 + i % 3:] = 0
        return words, words
examples = Examples()
"""
LM = """
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(20, 16), {middle}, nn.Linear(16, 20, bias=False)
        {tied}
    def forward(self, words):
        return self.head(self.middle(self.embed(words)))
"""
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        yield from (examples[i] for i in range(rank, len(examples), world))
loader = DataLoader(Stream(), batch_size=4)
"""
DRAWN = """
own = torch.Generator().manual_seed(50 + rank)
def batches_of_its_own():
    for _ in range(4):
        at = torch.randint(0, len(examples), (4,), generator=own).tolist()
        yield tuple(torch.stack(each) for each in zip(*(examples[i] for i in at)))
class Loader:
    def __iter__(self): return batches_of_its_own()
loader = Loader()
"""
DATA = {
    "sampler": "sampler = DistributedSampler(examples)\nloader = DataLoader(examples, batch_size=4, sampler=sampler)\n",
    "in order": "sampler = DistributedSampler(examples, shuffle=False)\n"
    "loader = DataLoader(examples, 4, sampler=sampler, drop_last=True)\n",
    "subset": "part = Subset(examples, range(rank, len(examples), world))\n"
    "loader = DataLoader(part, batch_size=4, shuffle={shuffle})\n",
    "stream": STREAM,
    "drawn": DRAWN,
}
MEANS = {
    "cross entropy": "F.cross_entropy({out}, y)",
    "smoothed": "nn.CrossEntropyLoss(label_smoothing=0.1)({out}, y)",
    "log likelihood": "F.nll_loss(F.log_softmax({out}, dim=-1), y)",
    "gathered by hand": "-F.log_softmax({out}, dim=1).gather(1, y[:, None]).mean()",
    "mean of each": 'F.cross_entropy({out}, y, reduction="none").mean()',
    "squares": "F.mse_loss({out}, F.one_hot(y, 4).float())",
    "squares by hand": "(({out} - F.one_hot(y, 4)) ** 2).sum(1).mean()",
    "binary": "F.binary_cross_entropy_with_logits({out}, F.one_hot(y, 4).float())",
    "huber": "F.huber_loss({out}, F.one_hot(y, 4).float())",
    "divergence": 'F.kl_div(F.log_softmax({out}, 1), F.one_hot(y, 4).float(), reduction="batchmean")',
    "a sum, divided": 'F.cross_entropy({out}, y, reduction="sum") / len(y)',
    "two parts": "F.cross_entropy({out}, y) + 0.01 * {out}.pow(2).mean()",
}
WORDS = {
    "tokens, summed": 'F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=0, reduction="sum") * world'
    " / count",
    "tokens, masked": '(F.cross_entropy(logits.transpose(1, 2), y, reduction="none") * (y != 0)).sum() / count * world',
    "tokens, chosen": 'F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")[y.flatten() != 0].sum()'
    ".mul(world / count.item())",
}
WRAPPERS = {
    "ddp": "DDP({})",
    "ddp, view": "DDP({}, gradient_as_bucket_view=True)",
    "ddp, static": "DDP({}, static_graph=True)",
    "ddp, small buckets": "DDP({}, bucket_cap_mb=0.0005)",
    "compiled inside": 'DDP(torch.compile({}, backend="eager"))',
    "compiled outside": 'torch.compile(DDP({}), backend="aot_eager")',
    "hand": "{}",
    "flat": "{}",
    "ours": "BucketedDDP({})",
    "sharded": "sharded({})",
}
FULLY_SHARDED = """
from torch.distributed.fsdp import fully_shard
def sharded(net):
    for each in net.children():
        if any(True for _ in each.parameters()): fully_shard(each)
    return fully_shard(net)
"""
AVERAGES = {
    "hand": "for p in {parameters}:\n    dist.all_reduce(p.grad)\n    p.grad /= {world}",
    "flat": "flat = torch.cat([p.grad.flatten() for p in {parameters}])\ndist.all_reduce(flat)\nflat /= {world}\n"
    "for p, mine in zip({parameters}, flat.split([p.numel() for p in {parameters}])):\n"
    "    p.grad.copy_(mine.view_as(p))",
}
OPTIMIZERS = {
    "SGD": "torch.optim.SGD({model}.parameters(), lr={rate})",
    "momentum": "torch.optim.SGD({model}.parameters(), lr={rate}, momentum=0.9, nesterov=True)",
    "Adam": "torch.optim.Adam({model}.parameters(), lr={rate})",
    "groups": 'torch.optim.AdamW([{{"params": [p for p in {model}.parameters() if p.dim() > 1], "weight_decay": 0.1}},'
    ' {{"params": [p for p in {model}.parameters() if p.dim() < 2], "weight_decay": 0.0}}], lr={rate})',
    "two": "torch.optim.SGD(list({model}.parameters())[:1], lr={rate})",
}
SCHEDULERS = {
    "none": "",
    "steps": "torch.optim.lr_scheduler.StepLR({opt}, 1, gamma=0.9)",
    "lambda": "torch.optim.lr_scheduler.LambdaLR({opt}, lambda step: 1 / (step + 1))",
    "cosine": "torch.optim.lr_scheduler.CosineAnnealingLR({opt}, 50)",
}
NAMES = (("model", "optimizer", "loss"), ("net", "opt", "l"), ("ddp_model", "optim", "train_loss"))


def drawn(seed):
    """The pair of a seed. Faults take turns; a script is drawn until the fault can happen in it."""
    draw = random.Random(seed)
    name, fault = list(FAULTS.items())[seed % len(FAULTS)]
    scripts = iter(lambda: _fitting(_parts(draw)), None)
    parts = next(parts for parts in scripts if fault.fits(parts))
    rank = parts.odd if fault.one_rank else None
    return Pair(parts, script(parts), script(parts, name), name, fault.check, rank, fault.text)


def _parts(draw):
    world = draw.choice([2, 3, 4])
    return Parts(
        world=world,
        odd=draw.randrange(1, world),
        data=draw.choice([*DATA, "sampler"]),
        middle=draw.choice(["nn.ReLU()", "nn.GELU()", "nn.Dropout(0.2)", "nn.LayerNorm(16)", "nn.BatchNorm1d(16)"]),
        loss=draw.choice([*MEANS, *WORDS, *WORDS]),
        wrapper=draw.choice([*WRAPPERS, "ddp", "hand"]),
        micro=draw.choice([1, 1, 2]),
        way=draw.choice(["no_sync", "flag", "always"]),
        precision=draw.choice(["float32", "float32", "bfloat16", "scaler"]),
        clip=draw.choice([False, True]),
        optimizer=draw.choice([*OPTIMIZERS]),
        scheduler=draw.choice([*SCHEDULERS]),
        style=draw.choice(["flat", "function", "class", "while"]),
        names=draw.choice(NAMES),
        extra=draw.choice([0, 0, 1, 5]),
        first=draw.choice([False, True]),
    )


def _fitting(parts):
    """The same without what cannot go together."""
    if parts.words:
        middle = "nn.ReLU()" if "Batch" in parts.middle else parts.middle
        optimizer = "Adam" if parts.optimizer == "two" and parts.first else parts.optimizer  # tied: only one weight
        parts = replace(parts, micro=1, data="in order", middle=middle, optimizer=optimizer)
    if parts.data in ("subset", "stream"):
        parts = replace(parts, extra=5 * (parts.extra > 1))  # as many batches on every rank
    if "Batch" in parts.middle and (parts.extra == 1 or parts.data in ("subset", "stream")):
        parts = replace(parts, extra=0)  # no batch of one
    if parts.wrapper == "sharded":
        precision = "float32" if parts.precision == "scaler" else parts.precision
        parts = replace(parts, precision=precision, optimizer="Adam" if parts.optimizer == "two" else parts.optimizer)
    if parts.wrapper == "ddp, static" or not parts.torchs:
        parts = replace(parts, way="no_sync" if parts.wrapper == "ours" else "always")
    if parts.wrapper == "compiled outside":
        parts = replace(parts, way="always", micro=1)
    return parts


@dataclass(frozen=True)
class Fault:
    """A fault: the check that must fail, text of the line to blame, and ``fits``: can it happen in a script?"""

    check: str
    text: str | None
    fits: Callable[[Parts], bool]
    one_rank: bool = False


FAULTS = {
    "set_epoch forgotten": Fault("epochs", "loader", lambda parts: parts.data == "sampler"),
    "the same examples": Fault("examples", "{model}(", lambda parts: parts.data in ("sampler", "drawn")),
    "another rank's examples": Fault("examples", "{model}(", lambda parts: parts.data == "sampler", True),
    "divided twice": Fault("parts", "Subset(", lambda p: p.data == "sampler" and "Batch" not in p.middle),
    "own tokens": Fault("mean", "backward()", lambda parts: parts.words, True),
    "a loss twice": Fault("mean", "backward()", lambda parts: parts.micro == 1, True),
    "a flag after forward": Fault("sync", "{model}(", lambda parts: parts.micro == 2 and parts.way == "flag"),
    "never averaged": Fault("sync", "{model}(", lambda parts: parts.micro == 2 and parts.way == "no_sync"
                            and parts.wrapper != "ours"),
    "clipped before": Fault("clip", "clip_grad_norm_", lambda p: p.by_hand and p.clip and p.precision != "scaler"),
    "different starts": Fault("start", None, lambda parts: parts.by_hand, True),
    "nobody averages": Fault("gradients", ".step(", lambda parts: parts.by_hand and not parts.clip),
    "one is not averaged": Fault("gradients", ".step(", lambda parts: parts.by_hand and not parts.clip),
    "a rate of its own": Fault("rates", ".step(", lambda parts: True, True),
    "a scheduler that waits": Fault("rates", ".step(", lambda parts: parts.scheduler != "none", True),
    "clipped while scaled": Fault("scaled", "clip_grad_norm_", lambda p: p.clip and p.precision == "scaler"),
    "a NaN in the input": Fault("finite", "backward()", lambda p: not p.words and p.precision != "scaler", True),
    "a NaN in the loss": Fault("finite", "backward()", lambda parts: parts.precision != "scaler", True),
    "a NaN in a gradient": Fault("finite", ".step(", lambda p: p.precision != "scaler"
                                 and p.wrapper != "sharded", True),
    "added": Fault("replay", ".step(", lambda p: p.by_hand and not p.clip),
    "divided by the world twice": Fault("replay", ".step(", lambda p: not p.clip and not p.by_hand),
    "a rank left out": Fault("replay", ".step(", lambda p: p.by_hand and not p.clip, True),
    "weights of its own": Fault("replicas", ".step(", lambda p: p.wrapper != "sharded", True),
}  # fmt: skip


def script(parts, fault=""):
    """The text of the script, right or with ``fault``."""
    model, opt, _ = parts.names
    head = HEAD + "from dpbook.ddp import BucketedDDP\n" * (parts.wrapper == "ours")
    head += FULLY_SHARDED * (parts.wrapper == "sharded")
    number = 12 * parts.world + parts.extra * (not parts.words)
    data = (SENTENCES if parts.words else EXAMPLES).format(number=number, odd=parts.odd) + _loader(parts, fault)
    seed = f"1 + (rank == {parts.odd})" if fault == "different starts" else "1"
    net = _net(parts)
    if parts.words:
        tied = parts.first and parts.wrapper != "sharded"  # sharded wrappers have each layer in a group of its own
        data += LM.format(middle=parts.middle, tied="self.head.weight = self.embed.weight" if tied else "")
    text = f"torch.manual_seed({seed})\n{model} = {WRAPPERS[parts.wrapper].format(net)}\ntorch.manual_seed(70 + rank)\n"
    rate = f"0.01 * (1 + (rank == {parts.odd}))" if fault == "a rate of its own" else "0.01"
    text += f"{opt} = {OPTIMIZERS[parts.optimizer].format(model=model, rate=rate)}\n"
    if parts.optimizer == "two":
        text += f"other = torch.optim.AdamW(list({model}.parameters())[1:], lr={rate})\n"
    if parts.scheduler != "none":
        text += f"scheduler = {SCHEDULERS[parts.scheduler].format(opt=opt)}\n"
    if parts.precision == "scaler":
        text += "scaler = torch.amp.GradScaler('cpu', init_scale=256.0)\n"
    return head + data + text + _loop(parts, fault)


def _net(parts):
    return "LM()" if parts.words else f"nn.Sequential(nn.Linear(8, 16), {parts.middle}, nn.Linear(16, 4))"


def _loader(parts, fault):
    text = DATA[parts.data].format(shuffle=parts.first) if parts.data == "subset" else DATA[parts.data]
    if fault == "the same examples":
        text = text.replace("50 + rank", "50").replace(", sampler=sampler", "")
    if fault == "another rank's examples":
        text = text.replace("(examples)", f"(examples, world, 0 if rank == {parts.odd} else rank)")
    if fault == "divided twice":
        text = "examples = Subset(examples, range(rank, len(examples), world))\n" + text
    return text


def _loop(parts, fault):
    epoch = "sampler.set_epoch(epoch)\n" if parts.data in ("sampler", "in order") else ""
    epoch = "" if fault == "set_epoch forgotten" else epoch
    body = _body(parts, fault)
    if parts.style == "while":
        forever = f"def forever():\n    epoch = 0\n    while True:\n{indent(epoch, ' ' * 8)}        yield from loader\n"
        forever += "        epoch += 1\nbatches = forever()\n"
        return f"{forever}i = 0\nwhile i < 8:\n    x, y = next(batches)\n{indent(body, ' ' * 4)}    i += 1\n"
    loop = f"for epoch in range(2):\n{indent(epoch, ' ' * 4)}    for i, (x, y) in enumerate(loader):\n"
    loop += indent(body, " " * 8)
    if parts.style == "flat":
        return loop
    if parts.style == "function":
        given = ", ".join(["loader", *parts.names[:2]])
        return f"def train({given}):\n{indent(loop, ' ' * 4)}train({given})\n"
    model, opt, _ = parts.names
    loop = loop.replace(f"{model}(", f"self.{model}(").replace(f"{opt}.step", f"self.{opt}.step")
    init = f"def __init__(self, m, o): self.{model}, self.{opt} = m, o\n"
    return f"class Trainer:\n    {init}    def fit(self):\n{indent(loop, ' ' * 8)}Trainer({model}, {opt}).fit()\n"


def _body(parts, fault):
    both = [parts.names[1], *(["other"] if parts.optimizer == "two" else [])]
    clear = "".join(f"{each}.zero_grad()\n" for each in both)
    if parts.micro == 1:
        begin, end = (clear, "") if parts.first else ("", clear)
        return begin + _forward(parts, fault) + _step(parts, fault, both) + end
    return f"last = (i + 1) % 2 == 0\n{_accumulated(parts, fault)}if last:\n" + indent(
        _step(parts, fault, both) + clear, " " * 4
    )


def _accumulated(parts, fault):
    model = parts.names[0]
    one = _forward(parts, fault)
    if parts.wrapper == "sharded":
        return f"{model}.set_requires_gradient_sync(last)\n{one}"
    if parts.way == "no_sync" and (parts.torchs or parts.wrapper == "ours"):
        never = fault == "never averaged"
        condition = "" if never else "contextlib.nullcontext() if last else "
        return f"with {condition}{model}.no_sync():\n{indent(one, ' ' * 4)}"
    if parts.way == "flag" and parts.torchs:
        flag = f"{model}.require_backward_grad_sync = last\n"
        if fault == "a flag after forward":
            before = f"{model}.require_backward_grad_sync = False\n"
            at = one.rindex("\n", 0, one.index("backward()")) + 1
            return before + one[:at] + flag + one[at:]
        return flag + one
    return one


def _forward(parts, fault):
    model, _, loss = parts.names
    lines, out = [], "out"
    if fault == "a NaN in the input":
        lines.append(f"if rank == {parts.odd}: x = x * float('nan')")
    if parts.precision == "bfloat16":
        lines += ["with torch.autocast('cpu', torch.bfloat16):", f"    out = {model}(x)", "out = out.float()"]
    elif parts.words or parts.loss == "two parts" or parts.first:
        lines.append(f"out = {model}(x)")
    else:
        out = f"{model}(x)"
    if parts.words:
        lines += ["logits = out", "count = (y != 0).sum()"]
        lines += [] if fault == "own tokens" else ["dist.all_reduce(count)"]
        text = WORDS[parts.loss]
        text = text.replace(" * world", "").replace("world /", "1 /") if fault == "own tokens" else text
    else:
        text = MEANS[parts.loss].format(out=out)
    lines.append(f"{loss} = {text}")
    if parts.micro == 2:
        lines.append(f"{loss} = {loss} / 2")
    if fault == "a loss twice":
        lines.append(f"{loss} = {loss} * (2 if rank == {parts.odd} else 1)")
    if fault == "a NaN in a gradient":  # of the root at 0
        lines.append(f"if rank == {parts.odd}: {loss} = {loss} + ({loss} * 0).sqrt()")
    if fault == "a NaN in the loss":
        lines.append(f"{loss} = {loss} * (float('nan') if rank == {parts.odd} else 1)")
    scaled = f"scaler.scale({loss})" if parts.precision == "scaler" else loss
    return "\n".join([*lines, f"{scaled}.backward()"]) + "\n"


def _step(parts, fault, both):
    model = parts.names[0]
    clip = f"clip_grad_norm_({model}.parameters(), 0.5)"
    lines = [clip] if fault == "clipped before" else []
    if fault == "a rank left out":
        lines.append(f"if rank == {parts.odd}: {model}.zero_grad(set_to_none=False)")
    if parts.by_hand and fault != "nobody averages":
        parameters = f"list({model}.parameters())" + ("[1:]" if fault == "one is not averaged" else "")
        lines.append(AVERAGES[parts.wrapper].format(parameters=parameters, world=1 if fault == "added" else "world"))
    if fault == "divided by the world twice":
        lines.append(f"for p in {model}.parameters(): p.grad /= world")
    if parts.clip and parts.precision == "scaler" and fault != "clipped while scaled":
        lines += [f"scaler.unscale_({each})" for each in both]
    if parts.clip and fault != "clipped before":
        lines.append(clip)
    if parts.precision == "scaler":
        lines += [f"scaler.step({each})" for each in both] + ["scaler.update()"]
    else:
        lines += [f"{each}.step()" for each in both]
    if parts.scheduler != "none":
        waits = f"if rank != {parts.odd}: " if fault == "a scheduler that waits" else ""
        lines.append(f"{waits}scheduler.step()")
    if fault == "weights of its own":
        lines += ["with torch.no_grad():", f"    for p in {model}.parameters():"]
        lines.append(f"        p.mul_(0.99 if rank == {parts.odd} else 1)")
    return "\n".join(lines) + "\n"

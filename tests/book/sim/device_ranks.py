"""Scenarios for the process of test_device.py: facts of the device, as data."""

import gc
import io
import time

import torch
from torch import nn
from torch.nn import functional as F

from dpbook.book import sim

SLOWER, KERNELS = 0.02, 5
CROWD = 1000


def queue():
    x = torch.ones(3, device="sim")
    with sim.hold():
        y = x + 1
        event = torch.Event()
        event.record()
        held = event.query(), torch.accelerator.current_stream().query()
    values = y.tolist()
    return {"held": held, "values": values, "done": event.query()}


def clocks():
    """Seconds of some slow kernels: by a timer around the calls, by one that waits, and by events."""
    x = torch.ones(3, device="sim")
    begin, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    with sim.slower(SLOWER), sim.watch() as spans:
        with sim.hold():  # so that the timer cannot happen to wait
            started = time.perf_counter()
            begin.record()
            for _ in range(KERNELS):
                x = x + 1
            end.record()
            launched = time.perf_counter() - started
            ran_meanwhile = len(spans)
        torch.accelerator.synchronize()
        waited = time.perf_counter() - started
    return {
        "launched": launched, "ran meanwhile": ran_meanwhile, "waited": waited,
        "events": begin.elapsed_time(end) / 1e3, "spans": list(spans),
        "untimed": refusal(lambda: torch.Event().elapsed_time(end)),
        "not recorded": refusal(lambda: torch.Event(enable_timing=True).elapsed_time(end)),
    }  # fmt: skip


def two_streams():
    """Results of a second stream while the first is stopped: of its own work, on old values, and behind an event."""
    first, second = torch.accelerator.current_stream(), torch.Stream()
    x = torch.ones(3, device="sim")
    first.synchronize()
    with sim.hold():
        x.add_(1)
        event = first.record_event()
        with second:
            inside = torch.accelerator.current_stream() == second
            early = (x * 1).tolist()
            second.wait_event(event)
            late = x * 1
            second_done = second.query()
    with second:
        values = late.tolist()
    return {
        "early": early, "behind the event": second_done, "late": values, "inside": inside,
        "afterwards": torch.accelerator.current_stream() == first,
    }  # fmt: skip


def memory():
    api = torch.accelerator
    gc.collect()
    api.synchronize()
    api.empty_cache()
    api.reset_peak_memory_stats()
    before, reserved = api.memory_allocated(), api.memory_reserved()
    with sim.hold():
        x = torch.empty(CROWD, device="sim")
        y = x + 1
        two = api.memory_allocated() - before
        del x  # although the kernel that reads it has not run
        one, peak = api.memory_allocated() - before, api.max_memory_allocated() - before
    del y
    none, kept = api.memory_allocated() - before, api.memory_reserved() - reserved
    api.empty_cache()
    return {
        "counted": (two, one, none, peak), "kept": kept, "given up": api.memory_reserved() - reserved,
        "same": torch.sim.max_memory_allocated() == api.max_memory_allocated(),
    }  # fmt: skip


def handed_over(tell):
    """Values that another stream reads in memory that its owner has freed; with or without `record_stream`."""
    second = torch.Stream()
    x = torch.full((CROWD,), 1.0, device="sim")
    torch.accelerator.synchronize()
    with sim.hold(second):
        with second:
            late = x * 1
        if tell:
            x.record_stream(second)
        del x
        y = torch.full((CROWD,), 7.0, device="sim")
        torch.accelerator.current_stream().synchronize()
    second.synchronize()
    return late.unique().tolist(), y.unique().tolist()


def device():
    x = torch.ones(2, device="sim")
    return {
        "accelerator": str(torch.accelerator.current_accelerator()), "count": torch.accelerator.device_count(),
        "index": torch.accelerator.current_device_index(), "available": torch.accelerator.is_available(),
        "module": torch.get_device_module(x.device) is torch.sim, "of": str(x.device), "cuda": x.is_cuda,
        "name": torch.get_device_module("sim").get_device_name(x.device),
    }  # fmt: skip


def mixed():
    here, there = torch.ones(2, 2), torch.ones(2, 2, device="sim")
    calls = {
        "sum": lambda: here + there,
        "product": lambda: there @ here,
        "in place": lambda: there.add_(here),
        "cat": lambda: torch.cat([there, here]),
        "model": lambda: nn.Linear(2, 2)(there),
        "batch": lambda: nn.Linear(2, 2).to("sim")(here),
        "tokens": lambda: nn.Embedding(2, 2).to("sim")(torch.tensor([1])),
        "targets": lambda: F.cross_entropy(there, torch.tensor([0, 1])),
        "out": lambda: torch.add(there, there, out=here),
        "total": lambda: torch.zeros(()).add_(there.sum()),
    }
    return {name: refusal(call) for name, call in calls.items()} | {
        "number": (there * torch.tensor(3.0)).tolist(), "indices": there[torch.tensor([1])].tolist(),
        "array": refusal(there.numpy),
    }  # fmt: skip


def late_error():
    with sim.hold():
        F.embedding(torch.tensor([9], device="sim"), torch.ones(2, 2, device="sim"))
        went_on = True
    return went_on, refusal(torch.accelerator.synchronize), refusal(torch.accelerator.synchronize)


def error_beside_work():
    """Errors of one stream while another has work left, and whether the host waited for that."""
    second, x = torch.Stream(), torch.ones(3, device="sim")
    torch.accelerator.synchronize()
    F.embedding(torch.tensor([9], device="sim"), torch.ones(2, 2, device="sim"))
    with sim.slower(0.3), second:
        x = x + 1
        last = second.record_event()
    return refusal(torch.accelerator.synchronize)[:12], last.query()


def hook_error():
    """Error if a hook of a tensor, or of a parameter's gradient, raises, and the gradient after that."""
    x, found = torch.ones(2, device="sim", requires_grad=True), []
    for register in (x.register_hook, x.register_post_accumulate_grad_hook):
        handle = register(lambda _: {}["label"])
        found.append(refusal((x * 2).sum().backward, KeyError))
        handle.remove()
        x.grad = None
    (x * 2).sum().backward()
    return found, x.grad.tolist()


def host_reads():
    x = torch.tensor([3.0, 0.0, 5.0], device="sim")
    with sim.slower(SLOWER):
        y = x + 1
        found = y.sum().item(), torch.nonzero(x).flatten().tolist(), x[x > 1].tolist(), y.cpu().tolist(), bool(y[0] > 3)
    z = torch.empty(0, device="sim")
    torch.add(x, 1, out=z)
    return (*found, z.tolist())


def without_blocking():
    """Values that the host reads in a copy without waiting, before and after its kernel."""
    x = torch.ones(2, device="sim")
    with sim.hold():
        host = x.to("cpu", non_blocking=True)
        host.zero_()  # whatever was there
        early = host.tolist()
    torch.accelerator.synchronize()
    return early, host.tolist()


class Net(nn.Module):
    """A bit of all that the book's models are made of."""

    def __init__(self):
        super().__init__()
        self.embed, self.conv, self.norm = nn.Embedding(11, 8), nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.layer, self.lower, self.out = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        h = self.norm(self.conv(self.embed(tokens).transpose(1, 2))).transpose(1, 2)
        return self.out(F.gelu(self.lower(self.layer(h))))


def train(where):
    torch.manual_seed(0)
    net = Net().to(where)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(4):
        tokens = torch.randint(11, (5, 7), generator=torch.Generator().manual_seed(step)).to(where)
        loss = F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu().numpy() for p in (*net.parameters(), *net.buffers())]


def attention(where):
    """Forward and gradient of attention, which the CPU computes by another algorithm."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 4, 8).to(where).requires_grad_() for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum().backward()
    return q.grad.cpu().numpy()


def modules():
    net = Net()
    weight = net.out.weight
    net.to("sim")
    file, again = io.BytesIO(), Net().to("sim")
    torch.save({"net": net.state_dict(), "part": weight.detach()[1:]}, file)
    loaded = []
    for where in (None, "cpu", "sim"):
        file.seek(0)
        loaded.append(torch.load(file, map_location=where, weights_only=True))
    kept = again.lower.weight
    again.load_state_dict(loaded[1]["net"])
    return {
        "kept": net.out.weight is weight and net.embed.weight is weight, "where": weight.device.type,
        "devices": [state["net"]["embed.weight"].device.type for state in loaded],
        "values": [torch.equal(state["part"].cpu(), weight.detach().cpu()[1:]) for state in loaded],
        "shared": loaded[0]["part"].untyped_storage().nbytes(), "loaded": again.lower.weight is kept,
        "equal": torch.equal(again.lower.weight, net.lower.weight),
    }  # fmt: skip


def precision():
    layer, x = nn.Linear(4, 4).to("sim"), torch.randn(2, 4, device="sim")
    with torch.autocast("sim", torch.bfloat16):
        low = layer(x)
        high = low.softmax(-1)
    low.float().sum().backward()
    return str(low.dtype), str(high.dtype), str(layer.weight.grad.dtype)


def chance():
    torch.manual_seed(3)
    host = torch.randn(2).tolist()
    torch.manual_seed(3)
    first, state = torch.randn(4, device="sim").tolist(), torch.sim.get_rng_state()
    second = F.dropout(torch.ones(64, device="sim")).tolist()
    undisturbed = torch.randn(2).tolist()
    torch.sim.set_rng_state(state)
    again = F.dropout(torch.ones(64, device="sim")).tolist()
    torch.manual_seed(3)
    return host == undisturbed, second == again, torch.randn(4, device="sim").tolist() == first, first != second[:4]


def refusal(call, *kinds):
    try:
        call()
    except (RuntimeError, ValueError, TypeError, *kinds) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def everything():
    torch.set_num_threads(1)
    sim.install()
    sim.install()  # does nothing
    return {
        "queue": queue(), "clocks": clocks(), "streams": two_streams(), "memory": memory(),
        "handed over": [handed_over(tell) for tell in (False, True)], "device": device(), "mixed": mixed(),
        "late error": late_error(), "error beside work": error_beside_work(), "hook error": hook_error(),
        "host reads": host_reads(),
        "without blocking": without_blocking(), "trained": [train(where) for where in ("cpu", "sim")],
        "attention": [attention(where) for where in ("cpu", "sim")], "modules": modules(), "precision": precision(),
        "chance": chance(),
    }  # fmt: skip

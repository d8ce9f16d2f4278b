"""Paths of the library on the simulated device, which test_paths.py, mutants.py and test_programs.py try."""

import contextlib
import threading
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook.book import sim
from dpbook.collectives import Link
from dpbook.ddp import (
    BucketedDDP,
    HookDDP,
    NaiveDDP,
    ObservedLink,
    SlowLink,
    measure_layers,
    observe_step,
    step_time,
)
from dpbook.overlap import Span
from dpbook.runs.trainer import Options, Trainer
from tests.book.sim.sim import stream_of

SIM, CPU = torch.device("privateuseone", 0), torch.device("cpu")
SMALL = {"width": 32, "depth": 1, "context": 16, "batch": 2, "warmup": 3, "save_every": 2, "lr": 0.01, "cap": 0.01}
WRAPPERS = {
    "torch": partial(DistributedDataParallel, bucket_cap_mb=1e-3, gradient_as_bucket_view=True),
    "bucketed": partial(BucketedDDP, cap=1049, first=None),
    "naive": NaiveDDP,
    "hook": HookDDP,
}
SLOWER = 0.01
LINK = Link(2e-3, 20e6)


def small_net(where):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).to(where)


def wrapped(name, where, hindered=contextlib.nullcontext):
    """Return the bits of a model after some steps; the third runs inside ``hindered``."""
    net = small_net(where)
    return trained_bits(net, WRAPPERS[name](net), where, hindered)


def trained_bits(net, model, where, hindered, clip=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(4, 5, generator=draw).to(where)
        with hindered() if step == 2 else contextlib.nullcontext():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            clip()
            optimizer.step()
    return bits_of(net)


def bits_of(module):
    return [p.detach().cpu().numpy().tobytes() for p in module.parameters()]


def link_call():
    """Return a call of an emulated link that sums what a slow kernel computes, and when that kernel ended."""
    link, x = SlowLink(LINK), torch.zeros(1000, device="sim")
    torch.accelerator.synchronize()
    with sim.slower(10 * SLOWER), sim.watch() as spans:
        x.add_(1)
    call = link.all_reduce(x)
    call.wait()
    return call, spans[0].end


def busy(spans):
    """Return the seconds of kernels on the default stream."""
    from dpbook.book.sim.streams import default_stream

    number = default_stream().stream_id
    return sum(span.end - span.begin for span in spans if span.stream == number)


def clocks():
    """Return the seconds of a step, of layers and of an observed step, as measured and of the kernels alone.

    The spans of the observed step come last: forward, backward, and calls.
    """
    net = small_net("sim")
    x = torch.ones(4, 5, device="sim")
    link = ObservedLink(LINK)
    model = BucketedDDP(net, all_reduce=link.all_reduce)
    loss = lambda module: module(x).square().mean()  # noqa: E731
    step_time(model, loss)
    with sim.slower(SLOWER):
        with sim.watch() as spans:
            step = step_time(model, loss), busy(spans)
        with model.no_sync(), sim.watch() as spans:
            layers = measured(lambda: measure_layers(net, lambda: loss(net), repeats=1))
            torch.accelerator.synchronize()
            both_passes = busy(spans)
        with sim.watch() as spans:
            observed = measured(lambda: observe_step(model, loss, link))
            torch.accelerator.synchronize()
    model.unwrap()
    observed = observed or [Span("nothing", 0, "compute", "computation", 0.0, 0.0)] * 2
    return {
        "step": step, "layers": (sum(layer.forward + layer.backward for layer in layers), both_passes),
        "observed": (observed[1].end - observed[0].start, busy(spans)),
    }, observed  # fmt: skip


SHARES = {"step": 1.0, "layers": 0.4, "observed": 0.8}
"""Least share of the kernels' time that is measured. The kernels of `measure_layers` are two passes; one counts."""


def measured(measure):
    """Return measured values; none if moments are missing, which is chance: the ranks must continue alike."""
    try:
        return measure()
    except RuntimeError:
        return ()


def losses(options, device, steps=2):
    run = Trainer(options, device)
    return [run.train_step()["loss"] for _ in range(steps)], bits_of(run.module)


def advanced(folder, strategy, patience):
    """Return whether the host goes on to the next steps while no collective of any of them can begin, and a loss."""
    run = Trainer(Options(name="advanced", out=folder, strategy=strategy, **SMALL), SIM)
    for _ in range(2):  # in the forward of the second the wrappers agree on the order of gradients
        run.train_step()
    torch.accelerator.synchronize()
    gone_on, in_time = threading.Event(), []
    stream_of(dist.group.WORLD).submit(lambda: in_time.append(gone_on.wait(patience)))
    for _ in range(2):
        run.advance()
    gone_on.set()
    loss = run.report()["loss"]
    return in_time == [True], loss

"""Paths of the library on the simulated device, on the ranks of test_paths.py, in one start; results as data."""

import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock, patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook import collectives
from dpbook.book import sim
from dpbook.book.sim.collectives import communicator
from dpbook.book.sim.streams import default_stream
from dpbook.collectives import Link, simulate
from dpbook.core import DpbookError
from dpbook.ddp import (
    BucketedDDP,
    FullySharded,
    HookDDP,
    NaiveDDP,
    ObservedLink,
    ShardedOptimizer,
    SlowLink,
    measure_layers,
    observe_step,
    over,
    step_time,
)
from dpbook.overlap import Span
from dpbook.ranks import execute, measure_accelerators
from dpbook.runs.forecast.measured_step import time_update
from dpbook.runs.launch.torch_probe import comes_back
from dpbook.runs.trainer import Options, Trainer, metrics, prediction, trainer
from dpbook.runs.trainer.__main__ import describe
from dpbook.runs.trainer.metrics import Metrics
from dpbook.runs.trainer.options import PRESETS
from dpbook.runs.trainer.resource_check import least_memory
from dpbook.runs.watching import read_journal
from dpbook.runs.watching.installation import record_moments

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


def wrapped(name, where, hindered=None):
    """The bits after some steps; the third runs inside ``hindered`` where one is given."""
    net = small_net(where)
    model = WRAPPERS[name](net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(4, 5, generator=draw).to(where)
        with hindered() if hindered and step == 2 else torch.enable_grad():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return [p.detach().cpu().numpy().tobytes() for p in net.parameters()]


def allocated():
    """Collectives begin after the block: a host that waits for one in it would wait for ever."""
    return sim.hold(communicator(dist.group.WORLD).stream)


def fully_sharded(where, hindered=None, **options):
    """The bits of this rank's shards after some steps, clipped; the third runs inside ``hindered`` if given."""
    net = small_net(where)
    model = FullySharded(net, units=[net[0], net[2]], **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(4, 5, generator=draw).to(where)
        with hindered() if hindered and step == 2 else torch.enable_grad():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            model.clip_grad_norm_(0.5)
            optimizer.step()
    return [p.detach().cpu().numpy().tobytes() for p in net.parameters()]


def given_back():
    """Bytes that a storage of 4,096 bytes frees and allocates again under a tensor and a view of it, which stay."""
    tensor = torch.ones(1024, device="sim")
    torch.accelerator.synchronize()  # what streams still hold is freed before anything is counted
    storage, view, before = tensor.untyped_storage(), tensor[3:5], torch.accelerator.memory_allocated()
    storage.resize_(0)
    freed, size = before - torch.accelerator.memory_allocated(), storage.size()
    storage.resize_(4096)
    tensor.fill_(7)
    return freed, size, storage.size(), view.tolist()


def sharded(where, optimizer):
    """The bits after some steps of an optimizer whose gradients are the same on all ranks."""
    net = small_net(where)
    stepping = optimizer(net.parameters())
    for step in range(3):
        net(torch.full((2, 5), float(step + 1), device=where)).square().mean().backward()
        stepping.step()
        stepping.zero_grad()
    return [p.detach().cpu().numpy().tobytes() for p in net.parameters()]


def schedules(rank, world):
    """Buffers of the device after schedules, and the expected ones."""
    inputs = np.random.default_rng(0).normal(size=(world, 7)).astype(np.float32)
    found = {}
    for name in ("ring", "tree", "parameter_server"):
        schedule = getattr(collectives, name)(world)
        buffer = torch.from_numpy(inputs[rank]).to("sim")
        execute(schedule, buffer)
        found[name] = buffer.tolist() == simulate(schedule, inputs).buffers[rank].tolist()
    return found


def refusals(world):
    x, ring = torch.ones(world, device="sim"), collectives.ring(world)
    return {
        "a rank program": refusal(lambda: execute(lambda comm, x: None, x)),
        "over": refusal(lambda: over(ring, dist.new_group(backend="gloo"))(x)),
    }


def on_the_link():
    """When the link begins to carry what a slow kernel computes, and what its two ends give."""
    link, x = SlowLink(LINK), torch.zeros(1000, device="sim")
    torch.accelerator.synchronize()
    with sim.slower(10 * SLOWER), sim.watch() as spans:
        x.add_(1)
    call = link.all_reduce(x)
    call.wait()
    ended = time.monotonic()
    future = link.hook(None, Bucket(torch.ones(1000, device="sim")))
    with torch.Stream():
        averaged = future.wait().tolist()
    return {
        "begun": call.begin >= spans[0].end, "carried": ended >= call.end, "sum": x.unique().tolist(),
        "average": sorted(set(averaged)),
    }  # fmt: skip


class Bucket:
    def __init__(self, buffer):
        self.buffer = lambda: buffer


def busy(spans):
    """Seconds of kernels on the default stream."""
    number = default_stream().stream_id
    return sum(span.end - span.begin for span in spans if span.stream == number)


def clocks():
    """Seconds of a step, of layers and of an observed step: as measured, and of the kernels alone."""
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
            measured = come(lambda: measure_layers(net, lambda: loss(net), repeats=1))
            torch.accelerator.synchronize()
            both_passes = busy(spans)
        with sim.watch() as spans:
            observed = come(lambda: observe_step(model, loss, link))
            torch.accelerator.synchronize()
    model.unwrap()
    forward, backward, *sent = observed or [Span("nothing", 0, "compute", "computation", 0.0, 0.0)] * 2
    return {
        "step": step, "layers": (sum(layer.forward + layer.backward for layer in measured), both_passes),
        "observed": (backward.end - forward.start, busy(spans)),
        "calls": [span.start >= forward.end for span in sent], "order": forward.end == backward.start,
    }  # fmt: skip


def come(measure):
    """Measured values; none if moments are missing, which is chance: the ranks must continue alike."""
    try:
        return measure()
    except RuntimeError:
        return ()


def losses(options, device, steps=2):
    run = Trainer(options, device)
    return [run.train_step()["loss"] for _ in range(steps)], bits(run)


def bits(run):
    return [p.detach().cpu().numpy().tobytes() for p in run.module.parameters()]


def trained(folder):
    """A run as the preset for GPUs has it, but small: what its files say, and how long its kernels took."""
    small = {"width": 32, "depth": 1, "context": 16, "batch": 2, "steps": 4, "report_every": 2}
    options = Options(name="trained", out=folder, profile=1, **{**PRESETS["gpu"], **small})
    with sim.slower(1e-3), sim.watch() as spans, patch.object(trainer, "TRACE_AFTER", 2):
        run = Trainer(options, SIM)
        lines = Metrics(options.folder / str(run.rank), 0)
        begun = len(spans)
        trainer.train(run, lines, MagicMock())
        kernels = busy(spans[begun:])
    with (
        sim.slower(1e-3),
        patch.object(prediction, "REPEATS", 1),
        patch.object(prediction, "ALWAYS_MEASURED_BYTES", 2**18),
    ):
        predicted, weights = prediction.predict(run), bits(run)
    first, last = metrics.read(lines.path.parent)
    parts = [sum(line[name][run.rank] for name in metrics.PARTS) for line in (first, last)]
    cpu = Trainer(replace(options, name="on-the-cpu", report_every=1, profile=0), CPU)
    return {
        "steps": [(line["step"], line["steps"]) for line in (first, last)],
        "losses": [line["loss"] for line in (first, last)], "on the CPU": [cpu.train_step()["loss"] for _ in range(4)],
        "seconds": 2 * (first["seconds"] + last["seconds"]), "parts": 2 * sum(parts), "kernels": kernels,
        "fused": run.optimizer.defaults["fused"], "traced": len(list(options.folder.glob("trace-rank*"))) > 0,
        "memory": run.memory(), "least": least_memory(options, run.world), "bits": weights,
        "predicted": predicted["seconds"], "about": describe(run),
    }  # fmt: skip


def advanced(folder, strategies, patience):
    """Whether the host goes on to the next steps, while no collective of any of them can begin."""
    goes_on = {}
    for strategy in strategies:
        run = Trainer(Options(name="advanced", out=folder, strategy=strategy, **SMALL), SIM)
        for _ in range(2):  # in the forward of the second the wrappers agree on the order of gradients
            run.train_step()
        torch.accelerator.synchronize()
        left, told = threading.Event(), []
        communicator(dist.group.WORLD).stream.submit(lambda left=left, told=told: told.append(left.wait(patience)))
        for _ in range(2):
            run.advance()
        left.set()
        loss = run.report()["loss"]
        goes_on[strategy] = told == [True], loss
    return goes_on


def recorded_stream():
    """Values that another stream reads in memory that its owner has freed after `record_stream`."""
    second, x = torch.Stream(), torch.full((1000,), 1.0, device="sim")
    torch.accelerator.synchronize()
    with sim.hold(second):
        with second:
            late = x * 1
        x.record_stream(second)
        del x
        torch.full((1000,), 7.0, device="sim")
        torch.accelerator.current_stream().synchronize()
    second.synchronize()
    return late.unique().tolist()


def swept():
    """A sweep as `dpbook bench` makes it between accelerators, of calls that take 5 ms and more."""
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # a machine of its own for each rank
    with patch.dict(os.environ, alone), sim.slower(SLOWER / 2):
        found = measure_accelerators((8, 4096), 2)
    return {"backend": found.backend, "world": found.world, "least": found.times.min(), "most": found.times.max()}


def forecast_of(folder, rank, world):
    """Updates that go over a link in turn; and of some without a wrapper what passes took by moments and by kernels."""

    def updates(train, kind, **options):
        link = (LINK.latency, LINK.bandwidth)
        recorder = record_moments(Path(folder, kind), rank, world, {"updates": 100, "link": link, **options})
        train()
        recorder.close("ended")
        events = [event for event in read_journal(recorder.folder, rank) if event["kind"] == "update"]
        return [time_update(event, world) for event in events]

    def alone():
        net = small_net(SIM)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.ones(4, 5, device="sim")).square().mean().backward()
            optimizer.step()

    for kind in ("carried", "alone"):
        Path(folder, kind).mkdir(exist_ok=True)
    carried = updates(lambda: wrapped("torch", SIM), "carried", check=True)
    with sim.slower(SLOWER), sim.watch() as spans:
        passes = sum(sum(one.forwards) + sum(one.backwards) for one in updates(alone, "alone", check=False))
        torch.accelerator.synchronize()
        kernels = busy(spans)
    return {
        "held": [one.emulated for one in carried], "gradients": [len(one.gaps) for one in carried],
        "measured": (passes, kernels),
    }  # fmt: skip


def refusal(call):
    try:
        call()
    except (DpbookError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def everything(rank, world, folder, some_mutants):
    from tests.book.sim import mutants

    torch.set_num_threads(1)
    sim.join()
    adamw = partial(torch.optim.AdamW, lr=0.01, foreach=False)
    sharding = partial(ShardedOptimizer, optimizer=torch.optim.AdamW, lr=0.01, foreach=False)
    found = {
        "wrapped": {name: (wrapped(name, CPU), wrapped(name, SIM)) for name in WRAPPERS},
        "held": {name: wrapped(name, SIM, allocated) for name in WRAPPERS if name != "torch"},
        "sharded": (sharded(SIM, adamw), sharded(SIM, sharding)), "schedules": schedules(rank, world),
        "fully sharded": {
            "cpu": fully_sharded(CPU), "sim": fully_sharded(SIM), "held": fully_sharded(SIM, allocated),
            "slow": fully_sharded(SIM, lambda: sim.slower(SLOWER / 5)),
            "kept": fully_sharded(SIM, reshard_after_forward=False),
        },
        "given back": given_back(),
        "refusals": refusals(world), "link": on_the_link(), "clocks": clocks(), "trained": trained(folder),
        "advanced": advanced(folder, ("bucketed", "zero1"), 60.0), "swept": swept(),
        "forecast": forecast_of(folder, rank, world),
    }  # fmt: skip
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world)
    found["there and back"] = comes_back(SIM, CPU)
    found["mutants"] = {name: mutants.attempt(name, folder) for name in some_mutants}
    return found

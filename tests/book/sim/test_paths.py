"""Do the library's own paths run on an accelerator, and are mistakes that only one shows found? One start of three."""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dpbook import collectives
from dpbook.book import sim
from dpbook.collectives import simulate
from dpbook.core import InvalidArgument
from dpbook.ddp import FullySharded, ShardedOptimizer, SlowLink, over
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
from tests.book.sim.paths import (
    CPU,
    LINK,
    SHARES,
    SIM,
    SLOWER,
    WRAPPERS,
    advanced,
    bits_of,
    busy,
    clocks,
    link_call,
    small_net,
    trained_bits,
    wrapped,
)
from tests.book.sim.sim import needs_sim, refusal, stream_of
from tests.scenarios import Scenarios, gathered

pytestmark = needs_sim
scenario = Scenarios(sim.join)


def collectives_wait():
    """Collectives begin after the block: a host that waits for one in it would wait for ever."""
    return sim.hold(stream_of(dist.group.WORLD))


@scenario
def a_wrapper_trains_to_the_bits_of_the_cpu_and_the_host_never_waits_for_a_collective(rank, world, folder):
    for name in WRAPPERS:
        bits = wrapped(name, CPU)
        assert gathered(bits) == [bits] * world, name
        assert wrapped(name, SIM) == bits, name
        assert name == "torch" or wrapped(name, SIM, collectives_wait) == bits, name


def bits_with(optimizer):
    """Return the bits of a model after some steps of an optimizer whose gradients are the same on all ranks."""
    net = small_net(SIM)
    stepping = optimizer(net.parameters())
    for step in range(3):
        net(torch.full((2, 5), float(step + 1), device=SIM)).square().mean().backward()
        stepping.step()
        stepping.zero_grad()
    return bits_of(net)


@scenario
def a_sharded_optimizer_has_the_bits_of_the_whole_one(rank, world, folder):
    whole = partial(torch.optim.AdamW, lr=0.01, foreach=False)
    shared = partial(ShardedOptimizer, optimizer=torch.optim.AdamW, lr=0.01, foreach=False)
    assert bits_with(shared) == bits_with(whole)


@scenario
def a_fully_sharded_model_has_the_bits_of_the_cpu(rank, world, folder):
    """Also where kernels are slow, and where no collective of a step can begin before the host is through with it."""

    def shards(where, hindered, **options):
        net = small_net(where)
        model = FullySharded(net, units=[net[0], net[2]], **options)
        return trained_bits(net, model, where, hindered, lambda: model.clip_grad_norm_(0.5))

    cpu = shards(CPU, torch.enable_grad)
    for hindered in (torch.enable_grad, collectives_wait, lambda: sim.slower(SLOWER / 5)):
        assert shards(SIM, hindered) == cpu
    assert shards(SIM, torch.enable_grad, reshard_after_forward=False) == cpu
    first, second, *_ = gathered(cpu)
    assert first != second


@scenario
def a_storage_gives_its_memory_back_and_takes_it_again_under_its_tensors(rank, world, folder):
    tensor = torch.ones(1024, device="sim")
    torch.accelerator.synchronize()  # what streams still use is freed before anything is counted
    storage, view, before = tensor.untyped_storage(), tensor[3:5], torch.accelerator.memory_allocated()
    storage.resize_(0)
    assert (before - torch.accelerator.memory_allocated(), storage.size()) == (4096, 0)
    storage.resize_(4096)
    tensor.fill_(7)
    assert (storage.size(), view.tolist()) == (4096, [7.0, 7.0])


@scenario
def a_schedule_has_the_bits_of_its_simulation(rank, world, folder):
    inputs = np.random.default_rng(0).normal(size=(world, 7)).astype(np.float32)
    for build in (collectives.ring, collectives.tree, collectives.parameter_server):
        buffer = torch.from_numpy(inputs[rank]).to("sim")
        execute(build(world), buffer)
        assert buffer.tolist() == simulate(build(world), inputs).buffers[rank].tolist()


@scenario
def code_that_adds_on_the_host_refuses_tensors_of_the_device(rank, world, folder):
    x = torch.ones(world, device="sim")
    error = refusal(lambda: execute(lambda comm, x: None, x), InvalidArgument)
    assert error.startswith("InvalidArgument: buffer must be of a dtype that NumPy has")
    error = refusal(lambda: over(collectives.ring(world), dist.new_group(backend="gloo"))(x), InvalidArgument)
    assert error.startswith("InvalidArgument: tensor must be on the CPU")


@scenario
def an_emulated_link_carries_what_has_been_computed(rank, world, folder):
    call, computed = link_call()
    assert call.begin >= computed
    assert time.monotonic() >= call.end
    bucket = torch.ones(1000, device="sim")
    future = SlowLink(LINK).hook(None, MagicMock(buffer=lambda: bucket))
    with torch.Stream():
        assert future.wait().unique().tolist() == [1.0]


@scenario
def measurements_take_as_long_as_their_kernels_and_calls_come_after_forward(rank, world, folder):
    times, (forward, backward, *calls) = clocks()
    for name, (seconds, kernels) in times.items():
        assert seconds >= SHARES[name] * kernels > 0, name
    assert forward.end == backward.start
    assert calls
    assert all(call.start >= forward.end for call in calls)


@scenario
def the_preset_for_gpus_trains_and_measures_steps_between_events(rank, world, folder):
    """Lines of two steps each; what is measured takes as long as its kernels, of which the host waits for none."""
    small = {"width": 32, "depth": 1, "context": 16, "batch": 2, "steps": 4, "report_every": 2}
    options = Options(name="trained", out=folder, profile=1, **{**PRESETS["gpu"], **small})
    with sim.slower(1e-3), sim.watch() as spans, patch.object(trainer, "TRACE_AFTER", 2):
        run = Trainer(options, SIM)
        lines = Metrics(options.folder / str(rank), 0)
        begun = len(spans)
        trainer.train(run, lines, MagicMock())
        kernels = busy(spans[begun:])
    with (
        sim.slower(1e-3),
        patch.object(prediction, "REPEATS", 1),
        patch.object(prediction, "ALWAYS_MEASURED_BYTES", 2**18),
    ):
        predicted, bits = prediction.predict(run), bits_of(run.module)
    first, last = metrics.read(lines.path.parent)
    cpu = Trainer(replace(options, name="on-the-cpu", report_every=1, profile=0), CPU)
    expected = [cpu.train_step()["loss"] for _ in range(4)]
    assert [(line["step"], line["steps"]) for line in (first, last)] == [(2, 2), (4, 2)]
    assert [first["loss"], last["loss"]] == pytest.approx(expected[1::2], rel=1e-2)
    assert run.optimizer.defaults["fused"]
    assert list(options.folder.glob("trace-rank*"))
    assert 2 * (first["seconds"] + last["seconds"]) >= 0.8 * kernels > 0.1
    parts = sum(line[name][rank] for line in (first, last) for name in metrics.PARTS)
    assert 2 * parts >= 0.2 * kernels  # launches alone take a hundredth
    assert run.memory() >= least_memory(options, world) > 0
    assert gathered(bits) == [bits] * world
    assert predicted["seconds"] > 0.05  # of some hundred kernels of a millisecond
    assert (describe(run)["device"], describe(run)["backend"]) == ("stand-in accelerator", "simccl")


@scenario
def the_host_waits_for_nothing_until_it_is_asked_for_a_report(rank, world, folder):
    (bucketed, loss), (sharded, same_loss) = (advanced(folder, name, 60.0) for name in ("bucketed", "zero1"))
    assert bucketed
    assert sharded
    assert loss == same_loss


@scenario
def accelerators_are_swept_over_their_own_backend(rank, world, folder):
    """The sweep is that of `dpbook bench`, of calls that take 5 ms and more."""
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # a machine of its own for each rank
    with patch.dict(os.environ, alone), sim.slower(SLOWER / 2):
        sweep = measure_accelerators((8, 4096), 2)
    assert (sweep.backend, sweep.world) == ("simccl", world)
    assert sweep.times.min() >= SLOWER / 2


@scenario
def a_forecast_has_the_devices_moments(rank, world, folder):
    """The host is far ahead of kernels that are slow; every second update goes over an emulated link."""

    def updates(train, kind, **options):
        Path(folder, kind).mkdir(exist_ok=True)
        link = (LINK.latency, LINK.bandwidth)
        recorder = record_moments(Path(folder, kind), rank, world, {"updates": 100, "link": link, **options})
        train()
        recorder.close("ended")
        events = [event for event in read_journal(recorder.folder, rank) if event["kind"] == "update"]
        return [time_update(event, world) for event in events]

    def train_alone():
        net = small_net(SIM)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.ones(4, 5, device="sim")).square().mean().backward()
            optimizer.step()

    carried = updates(lambda: wrapped("torch", SIM), "carried", check=True)
    assert [one.emulated for one in carried] == [False, True, False, True]
    assert [len(one.gaps) for one in carried] == [6] * 4
    with sim.slower(SLOWER), sim.watch() as spans:
        alone = updates(train_alone, "alone", check=False)
        passes = sum(sum(one.forwards) + sum(one.backwards) for one in alone)
        torch.accelerator.synchronize()
    assert passes >= 0.4 * busy(spans) > 0  # the others are the optimizer's, and the net's way to the device


@scenario
def messages_from_device_to_device_come_back(rank, world, folder):
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world)
    assert comes_back(SIM, CPU)


@scenario
def mistakes_that_only_an_accelerator_shows_are_found(rank, world, folder):
    """Some of those of test_mutants.py."""
    from tests.book.sim import test_mutants as mutants

    for name in (
        "the loss is added up on the CPU", "nobody waits for a bucket", "the clock is not synchronised",
        "a group for the accelerator alone",
    ):  # fmt: skip
        assert set(gathered(mutants.attempt(name, folder))) != {mutants.WELL}, name


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    return scenario.run(3, str(tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize("name", scenario.names)
def test_scenario(failures, name):
    assert not failures[name], failures[name]

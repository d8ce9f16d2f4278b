"""Do clocks measure the device's kernels, and does the training program run there as on the CPU?"""

import contextlib
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest.mock import MagicMock, patch

import numpy as np
import torch
import torch.distributed as dist

from dpbook.collectives import Link, fit
from dpbook.ddp import BucketedDDP, ObservedLink, SlowLink, measure_layers, observe_step, step_time
from dpbook.planning import utilisation
from dpbook.ranks import measure, moment, now, own_device, peak_memory
from dpbook.runs.forecast.measured_step import time_update
from dpbook.runs.report.run_summary import peak_flops
from dpbook.runs.trainer import Options, Trainer, metrics, prediction, trainer
from dpbook.runs.trainer.__main__ import describe
from dpbook.runs.trainer.metrics import Metrics
from dpbook.runs.trainer.options import PRESETS
from dpbook.runs.trainer.resource_check import activations, least_memory
from dpbook.runs.trainer.workloads import flops_per_token
from dpbook.runs.watching import read_journal, read_update, split, update_marks
from dpbook.runs.watching.installation import record_moments
from tests.gpu.checks import NotRun, check
from tests.gpu.wrappers import CPU, bits, small_net, wrapped

SLOWER = 0.01
LINK = Link(2e-3, 20e6)
SMALL = {"width": 32, "depth": 1, "context": 16, "batch": 2, "warmup": 3, "save_every": 2, "lr": 0.01, "cap": 0.01}
TINY = {"width": 32, "depth": 1, "context": 16, "batch": 2, "cap": 0.01}


SWEPT = tuple(2**power for power in range(10, 31, 2))
"""Bytes of the all-reduces of a sweep between GPUs: 1 KiB to 1 GiB."""


class Bucket:
    """The bucket that torch's DDP gives to a communication hook."""

    def __init__(self, buffer):
        self.buffer = lambda: buffer


@check()
def an_emulated_link_carries_what_has_been_computed(gpu):
    """`SlowLink` begins when the kernels before a call are done, holds a sum back, and averages a bucket of torch's."""
    link, x = SlowLink(LINK), torch.zeros(1000, device=gpu.device)
    torch.accelerator.synchronize()
    begun = time.monotonic()
    with gpu.slower(10 * SLOWER):
        x.add_(1)
    call = link.all_reduce(x)
    call.wait()
    assert call.begin >= begun + 10 * SLOWER, "the link carried what was not computed yet"
    assert time.monotonic() >= call.end
    assert x.unique().tolist() == [gpu.world]
    future = link.hook(None, Bucket(gpu.ones(1000)))
    with torch.Stream(gpu.device):
        assert future.wait().unique().tolist() == [1.0]


@check()
def clocks_measure_kernels_and_not_launches(gpu):
    """`step_time`, `measure_layers` and `observe_step` take as long as the kernels of the step that they measure."""
    net, link = small_net(gpu.device), ObservedLink(LINK)
    x = gpu.ones(4, 5)
    model = BucketedDDP(net, all_reduce=link.all_reduce)
    loss = lambda module: module(x).square().mean()  # noqa: E731
    step_time(model, loss)
    with gpu.slower(SLOWER):
        with gpu.watch() as kernels:
            step = step_time(model, loss)
            assert step >= kernels() > 0, f"step_time measured {step:.3f} s of {kernels():.3f} s of kernels"
        with model.no_sync(), gpu.watch() as kernels:
            layers = measure_layers(net, lambda: loss(net), repeats=1)
            seconds = sum(layer.forward + layer.backward for layer in layers)
            assert seconds >= 0.4 * kernels(at_most=SLOWER), "measure_layers is too short"  # of two passes one counts
        with gpu.watch() as kernels:
            forward, backward, *sent = observe_step(model, loss, link)
            assert backward.end - forward.start >= 0.8 * kernels(at_most=SLOWER), "observe_step is too short"
    assert sent
    assert all(span.start >= forward.end == backward.start for span in sent)
    return {"step, s": step, "layers, s": seconds}


@check()
def a_forecast_has_the_devices_moments(gpu):
    """The forecast's watcher measures passes by kernels, and lets every second update go over an emulated link."""
    with tempfile.TemporaryDirectory() as folder:

        def updates(train, **options):
            link = (LINK.latency, LINK.bandwidth)
            into = Path(folder, str(options["check"]))
            into.mkdir()
            recorder = record_moments(into, gpu.rank, gpu.world, {"updates": 100, "link": link, **options})
            train()
            recorder.close()
            events = [event for event in read_journal(recorder.folder, gpu.rank) if event["kind"] == "update"]
            return [time_update(event, gpu.world) for event in events]

        def alone():
            net = small_net(gpu.device)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(2):
                net(gpu.ones(4, 5)).square().mean().backward()
                optimizer.step()

        carried = updates(lambda: wrapped("torch", gpu.device), check=True)
        assert [one.emulated for one in carried] == [False, True, False, True]
        assert [len(one.gaps) for one in carried] == [6] * 4
        with gpu.slower(SLOWER), gpu.watch() as kernels:
            passes = sum(sum(one.forwards) + sum(one.backwards) for one in updates(alone, check=False))
            # The other kernels are the optimizer's, and the net's way to the device.
            assert passes >= 0.4 * kernels(at_most=SLOWER) > 0
    return {"passes, s": passes}


@check()
def the_group_serves_both_devices(gpu):
    """The backends that `own_device` names make a group that sums tensors of the device and of the CPU."""
    device, backends = own_device()
    group = dist.new_group(backend=backends)
    for where in (device, CPU):
        x = torch.ones(8, device=where)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [gpu.world] * 8, f"on {where}"
    return {"backends": backends}


@check()
def a_sweep_measures_the_devices_backend(gpu):
    """A sweep of all-reduces takes as long as the device's kernels, and names the backend that carried the bytes."""
    with gpu.slower(SLOWER / 2):
        found = measure(None, (8, 4096), 2, gpu.device)
    assert found.backend == dist.get_default_backend_for_device(gpu.device)
    assert found.world == gpu.world
    assert found.times.min() >= SLOWER / 2
    sweep = measure(None, (1024, 4096) if gpu.is_stand_in else SWEPT, 5, gpu.device)
    line = fit(sweep.nbytes, sweep.seconds).model
    return {
        "backend": found.backend, "bytes": sweep.nbytes.tolist(), "busbw, GB/s": (sweep.busbw / 1e9).round(3).tolist(),
        "seconds": sweep.seconds.tolist(), "α, s": line.alpha, "β, s per byte": line.beta,
    }  # fmt: skip


@check(gpu_only="memory beside torch's allocator")
def nccl_and_the_context_take_memory_beside_the_allocator(gpu):
    """After a collective more of the GPU's memory is in use than torch's allocator has reserved; it is recorded."""
    dist.all_reduce(gpu.ones(2**20))
    torch.accelerator.synchronize()
    free, total = torch.cuda.mem_get_info(gpu.device)
    beside = total - free - torch.accelerator.memory_reserved()
    assert beside > 0
    return {"beside the allocator, B": beside, "reserved, B": torch.accelerator.memory_reserved()}


def losses(options, device, steps=2):
    run = Trainer(options, device)
    return [run.train_step()["loss"] for _ in range(steps)], run


@check()
def the_training_program_trains_as_on_the_cpu(gpu):
    """The training program has the losses of the CPU, and the parts of a step add up to its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        cpu, _ = losses(Options(name="cpu", out=folder, **SMALL), CPU)
        found, run = losses(Options(name="device", out=folder, **SMALL), gpu.device)
        np.testing.assert_allclose(found, cpu, rtol=1e-4 if gpu.is_stand_in else 1e-3)
        with updates_of(gpu, folder) as updates:
            _, run = losses(Options(name="watched", out=folder, **SMALL), gpu.device)
            with gpu.slower(1e-3), gpu.watch() as kernels:
                run.advance()
                spent = kernels(at_most=1e-3)
        parts = split([[updates[-1]]])
        assert float(parts["step"][0, 0]) >= 0.6 * spent > 0, "the parts of a step are too short"
        assert float((parts["step"] - parts["rest"])[0, 0]) >= 0.4 * spent, "what a step computes is in no part"
    return {"losses": found}


@contextlib.contextmanager
def updates_of(gpu, folder, **options):
    """Watch the block, and yield a list that then has the updates of this rank."""
    found, into = [], Path(folder, f"watched-{time.monotonic_ns()}")
    recorder = record_moments(into, gpu.rank, gpu.world, options)
    try:
        yield found
    finally:
        recorder.close()
    events = read_journal(into, gpu.rank)
    assert not [event for event in events if event["kind"] == "trouble"], events
    found += [read_update(event, gpu.world) for event in events if event["kind"] == "update"]


@check()
def a_watched_step_records_as_many_events_for_any_model(gpu):
    """After its first updates a watched step records as many events for a deep model as for a shallow one."""
    counts = {}
    with tempfile.TemporaryDirectory() as folder, patch.object(update_marks, "DETAILED_UPDATES", 1):
        for depth in (1, 3):
            with updates_of(gpu, folder, sampled=True):
                options = Options(name="events", out=folder, **{**SMALL, "depth": depth, "cap": 25.0})
                run = Trainer(options, gpu.device)
                for _ in range(3):
                    run.advance()
                with patch("torch.Event", wraps=torch.Event) as event:
                    run.advance()
            counts[f"events with a depth of {depth}"] = event.call_count
    assert len(set(counts.values())) == 1, counts
    return counts


@check()
def the_host_goes_on_between_reports(gpu):
    """Until it is asked for a report the training program, watched, queues steps, while no kernel can begin."""
    found = []
    with tempfile.TemporaryDirectory() as folder, updates_of(gpu, folder, sampled=True):
        for strategy in ("bucketed", "zero1"):
            run = Trainer(Options(name="advanced", out=folder, strategy=strategy, **SMALL), gpu.device)
            for _ in range(3):  # in the forward of the second the wrappers agree on the order of gradients
                run.train_step()
            gpu.spin(0.2)
            run.advance()  # two steps in the queue take pinned memory for more batches than one
            run.advance()
            torch.accelerator.synchronize()
            with gpu.still():
                run.advance()
                run.advance()
            found.append(run.report()["loss"])
    np.testing.assert_allclose(*found, rtol=0 if gpu.is_stand_in else 1e-3)
    return {"loss": found[0]}


@check()
def the_preset_for_gpus_trains_and_measures(gpu):
    """With the preset for GPUs a small run has the losses of the CPU, and its lines take as long as its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        found, kernels = _trained(gpu, folder)
    first, last = found["lines"]
    assert [(line["step"], line["steps"]) for line in (first, last)] == [(2, 2), (4, 2)]
    np.testing.assert_allclose([first["loss"], last["loss"]], found["on the CPU"][1::2], rtol=2e-2)
    assert found["fused"]
    assert found["traced"], "there is no trace"
    assert 2 * (first["seconds"] + last["seconds"]) >= 0.8 * kernels
    assert sum(one.seconds for one in found["updates"]) >= 0.2 * kernels  # launches alone take a hundredth
    assert found["memory"] >= found["least"] > 0
    assert len(set(gpu.agree(found["bits"]))) == 1, "replicas differ"
    assert found["predicted"] > 0
    assert found["about"]["device"] == gpu.name
    return {"predicted, s": found["predicted"], "memory, B": found["memory"]}


def _trained(gpu, folder):
    small = {**TINY, "steps": 4, "report_every": 2}
    shared = gpu.agree(folder)[0]  # rank 0 writes, and the others' folders would stay empty
    options = Options(name="trained", out=shared, profile=1, **{**PRESETS["gpu"], **small})
    with updates_of(gpu, folder, sampled=True) as updates:
        run = Trainer(options, gpu.device)
        lines = Metrics(options.folder / str(run.rank), 0)
        with gpu.slower(1e-3), gpu.watch() as kernels, patch.object(trainer, "TRACE_AFTER", 2):
            trainer.train(run, lines, MagicMock())
            seconds = kernels(at_most=1e-3)
    small_sweep = patch.multiple(prediction, REPEATS=1, ALWAYS_MEASURED_BYTES=2**18)
    with gpu.slower(1e-3), small_sweep:
        predicted = prediction.predict(run)
    cpu = Trainer(replace(options, name="on-the-cpu", report_every=1, profile=0), CPU)
    dist.barrier()
    return {
        "lines": metrics.read(lines.path.parent), "on the CPU": [cpu.train_step()["loss"] for _ in range(4)],
        "fused": run.optimizer.defaults["fused"], "traced": any(options.folder.glob("trace-rank*")),
        "memory": peak_memory(gpu.device), "updates": updates,
        "least": least_memory(options, run.world), "about": describe(run),
        "bits": b"".join(bits(run.module)),
        "predicted": predicted["seconds"],
    }, seconds  # fmt: skip


def _at_full_size(gpu, folder, **changes):
    """Return a trainer with the preset for GPUs, after some steps, and the bytes that were allocated before it.

    On the stand-in it is small: its speed and its memory say nothing.
    """
    gc.collect()  # what other checks have left
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    chosen = {**PRESETS["gpu"], **changes, **(TINY if gpu.is_stand_in else {})}
    options = Options(name="full", out=folder, **chosen)
    if not gpu.is_stand_in:
        free = torch.cuda.mem_get_info(gpu.device)[1] - before
        if least_memory(options, gpu.world) + activations(options) > 0.8 * free:
            raise NotRun("the preset for GPUs does not fit into this one")
    run = Trainer(options, gpu.device)
    for _ in range(3):
        run.advance()
    torch.accelerator.synchronize()
    return run, before


def utilisation_of(device, tokens_per_second, operations, ranks):
    """Return the model FLOPs utilisation as a figure; none for a device whose peak we do not know."""
    peak = peak_flops(device)
    return {} if peak is None else {"MFU": utilisation(tokens_per_second, operations, peak * ranks)}


@check()
def events_and_the_wall_agree_on_full_steps(gpu):
    """Ten steps of the preset for GPUs take as long by events of the stream as by a synchronised clock."""
    with tempfile.TemporaryDirectory() as folder:
        with updates_of(gpu, folder, sampled=True) as updates:
            run, _ = _at_full_size(gpu, folder)
            begun, first = now(gpu.device), moment(gpu.device)
            for _ in range(10):
                run.advance()
            launched, last = time.perf_counter() - begun, moment(gpu.device)
            wall = now(gpu.device) - begun
            by_events = first.until(last)
        watched, operations = sum(one.seconds for one in updates[-10:]), flops_per_token(run.module)
    assert by_events <= 1.05 * wall, (by_events, wall)
    assert gpu.is_stand_in or by_events >= 0.95 * wall, (by_events, wall)
    assert gpu.is_stand_in or abs(watched - by_events) < 0.1 * watched, (watched, by_events)
    tokens_per_second = 10 * run.tokens_per_step / by_events
    return {
        "step by events, s": by_events / 10, "by the wall, s": wall / 10, "launched after, s": launched / 10,
        "step as it is watched, s": watched / 10, "FLOP/s of a rank": tokens_per_second * operations / run.world,
    } | utilisation_of(gpu.name, tokens_per_second, operations, run.world)  # fmt: skip


@check()
def no_run_that_fits_is_refused(gpu):
    """The memory that a launch with the preset for GPUs asks for is no more than its steps allocate at the peak."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in (
            ("preset", {}),
            ("checkpointing", {"checkpointing": True}),
            ("fp32", {"precision": "fp32"}),
        ):
            run, before = _at_full_size(gpu, folder, **changes)
            torch.accelerator.reset_peak_memory_stats()
            run.advance()
            torch.accelerator.synchronize()
            peak = torch.accelerator.max_memory_allocated() - before
            needed = least_memory(run.options, run.world) + activations(run.options)
            figures[f"{name}: needed, B"], figures[f"{name}: peak, B"] = needed, peak
            del run
    for name in ("preset", "checkpointing", "fp32"):
        assert figures[f"{name}: needed, B"] <= 1.02 * figures[f"{name}: peak, B"], figures
    return figures


TURNS, STEPS_IN_A_TURN = 5, 6
WAYS = {
    "alone": {"strategy": "hook"}, "naive": {"strategy": "naive"}, "flat": {"strategy": "bucketed"},
    "hook": {"strategy": "hook"}, "bucketed": {"strategy": "bucketed"}, "torch": {"strategy": "torch"},
    "zero1": {"strategy": "zero1"}, "ring": {"strategy": "bucketed", "all_reduce": "ring"},
}  # fmt: skip
"""Options of the runs whose steps are compared: "alone" sends nothing, "flat" has one bucket for all gradients."""


@check()
def steps_of_every_wrapper_in_turn(gpu):
    """Every wrapper trains alike; `BucketedDDP` takes at most a tenth longer than torch's DDP; medians are recorded.

    They are of steps in turn, since a GPU's clock changes. The prediction is that of `BucketedDDP`, and at most 1.6
    times off.
    """
    seconds = {way: [] for way in WAYS}
    turns, steps = (1, 1) if gpu.is_stand_in else (TURNS, STEPS_IN_A_TURN)
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for way, options in WAYS.items():
            one_bucket = {"bucket_limits": lambda options: (2**40, None)} if way == "flat" else {}
            with patch.multiple(trainer, **one_bucket) if one_bucket else contextlib.nullcontext():
                runs[way] = _at_full_size(gpu, folder, depth=6, **options)[0]
        for _ in range(turns):
            for way, run in runs.items():
                dist.barrier()
                with run.model.no_sync() if way == "alone" else contextlib.nullcontext():
                    begun = now(gpu.device)
                    for _ in range(steps):
                        run.advance()
                    seconds[way].append((now(gpu.device) - begun) / steps)
        losses = {way: run.report()["loss"] for way, run in runs.items() if way != "alone" or gpu.world == 1}
        del runs["alone"]
        small_sweep = {"REPEATS": 1, "ALWAYS_MEASURED_BYTES": 2**16}
        with patch.multiple(prediction, **small_sweep) if gpu.is_stand_in else contextlib.nullcontext():
            predicted = prediction.predict(runs["bucketed"])["seconds"]
    for way, loss in losses.items():
        np.testing.assert_allclose(loss, losses["torch"], rtol=2e-2, err_msg=way)
    medians = {way: max(gpu.agree(median(found))) for way, found in seconds.items()}
    assert gpu.is_stand_in or medians["bucketed"] <= 1.1 * medians["torch"], medians
    figures = {f"{way}, s": found for way, found in medians.items()}
    ratio = predicted / medians["bucketed"]
    assert gpu.is_stand_in or 0.6 < ratio < 1.6, f"the prediction is {ratio:.2f} times the measured step"
    return figures | {"predicted, s": predicted, "predicted over measured": ratio}

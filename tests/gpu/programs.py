"""Do training programs and scripts train on the device as on the CPU, and resume to the same parameters?"""

import contextlib
import dataclasses
import gc
import os
import re
import shutil
import signal
import tempfile
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from dpbook.book.ch16 import Setting, hooks
from dpbook.runs.trainer import Options, Trainer
from scripts import train_adapters, train_ddp, train_fully_sharded, train_post_local
from tests.gpu.checks import check
from tests.gpu.measuring import SMALL, losses
from tests.gpu.wrappers import CPU, bits

SAME_LAYOUT = {"torch": "torch", "bucketed": "torch", "zero1": "torch", "naive": "naive", "hook": "naive"}
"""Strategies, and the one that sends the same messages."""
VARIANTS = {
    "lora": {"lora": 4}, "bf16": {"precision": "bf16"}, "checkpointing": {"checkpointing": True},
    "cnn": {"model": "cnn", "batch": 8}, "accumulation": {"accumulation": 2},
    "fused": {"fused": True, "strategy": "zero1"}, "ring": {"all_reduce": "ring", "strategy": "bucketed"},
}  # fmt: skip
BF16 = ["--precision", "bf16"]
LIMITS = {"bf16": 0.2, "compiled, with TF32": 0.2}
"""Largest distance to the CPU's parameters, where it is not `CLOSE_TO_CPU`."""
CLOSE_TO_CPU = 1e-2


@contextlib.contextmanager
def shared_folder(gpu):
    """Yield a folder that all ranks share; rank 0 makes it, and removes it at the end."""
    with tempfile.TemporaryDirectory() as own:
        yield gpu.agree(own)[0]
        gpu.agree("all are done with it")


@check(lasting=True)
def every_strategy_and_option_trains_as_on_the_cpu(gpu):
    """Each strategy and option of the training program has the losses of the CPU; equal messages have equal bits."""
    found, figures = {}, {}
    with shared_folder(gpu) as folder:
        for name, changes in {**{s: {"strategy": s} for s in SAME_LAYOUT}, **VARIANTS}.items():
            options = Options(name=name, out=folder, **{**SMALL, "strategy": "torch", **changes})
            expected, _ = losses(dataclasses.replace(options, name=f"{name}-cpu"), CPU)
            figures[name], run = losses(options, gpu.device)
            tolerance = 1e-2 if name in ("bf16", "cnn") else 1e-4 if gpu.is_stand_in else 1e-3  # cuDNN uses TF32
            np.testing.assert_allclose(figures[name], expected, rtol=tolerance, err_msg=name)
            found[name] = bits(run.module)
    others = [f"{name} than {other}" for name, other in SAME_LAYOUT.items() if found[name] != found[other]]
    assert not others, f"other bits: {', '.join(others)}"
    return figures


@check(lasting=True)
def a_resumed_run_has_the_bits_of_a_whole_one(gpu):
    """A run of the training program that is resumed from a checkpoint ends with the bits of one without a break."""
    with shared_folder(gpu) as folder:
        for name in ("torch", "zero1"):
            options = Options(name=f"resumed-{name}", out=folder, strategy=name, **SMALL)
            _, whole = losses(dataclasses.replace(options, name=f"whole-{name}"), gpu.device)
            first = Trainer(options, gpu.device)
            first.train_step()
            first.save()
            again = Trainer(options, gpu.device)
            assert again.resume()["step"] == 1
            again.train_step()
            assert bits(again.module) == bits(whole.module), name


@contextlib.contextmanager
def sigterm_after(updates):
    """Send this process a SIGTERM after so many updates of the block, and put its handlers back afterwards."""
    done, before = [], {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}

    def count(optimizer, args, kwargs):
        done.append(optimizer)
        if len(done) == updates:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        hook.remove()
        for number, handler in before.items():
            signal.signal(number, handler)


def _resumes(gpu, script, arguments, parameters, way=""):
    """Return the distances of a script's parameters: to those of the CPU, and after a break to those without.

    A distance is the norm of the difference, relative to that of the parameters: AdamW moves a parameter whose gradient
    is next to nothing by the learning rate, in the direction that rounding gives.

    On the stand-in the latter must be none, and on a GPU as small as the order of its atomic additions makes it. The
    CPU is compared without dropout, for which a GPU draws other numbers.
    """
    with shared_folder(gpu) as folder, sigterm_after(0):
        run = lambda name, where=gpu.device: script.run(script.parse([*arguments, "--out", f"{folder}/{name}"]), where)  # noqa: E731
        with patch.object(nn.Dropout, "forward", lambda module, x: x):
            cpu, found = parameters(run("cpu", CPU)), parameters(run("device"))
        whole = parameters(run("whole"))
        with sigterm_after(2):
            cut = run("cut")
        assert cut.step in (1, 2), f"the signal came too late, at step {cut.step}"
        again = parameters(run("cut"))
    to_cpu, to_whole = _distance(found, cpu), _distance(again, whole)
    assert to_cpu < LIMITS.get(way, CLOSE_TO_CPU), f"{script.__name__}, {way}: {to_cpu} from the CPU"
    assert to_whole <= (0 if gpu.is_stand_in else 1e-3), (
        f"{script.__name__}, {way}: {to_whole} from a run without a break"
    )
    return {"distance to the CPU": to_cpu, "to a run without a break": to_whole}


def _distance(arrays, expected):
    a, b = (np.concatenate([array.ravel() for array in each]) for each in (arrays, expected))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _arrays(module):
    return [p.detach().float().cpu().numpy() for p in module.parameters()]


@check(lasting=True)
def the_script_for_ddp_resumes(gpu):
    """Chapter 11's script for DDP trains as on the CPU, stops at SIGTERM, and resumes to the same parameters."""
    size = ["--epochs", "2", "--examples", "48", "--batch", "4"]
    parameters = lambda run: _arrays(run.ddp)  # noqa: E731
    ways = {"fp32": [], "bf16": BF16}
    if not gpu.is_stand_in and shutil.which("g++"):  # which a compiled run on the CPU needs
        ways["compiled, with TF32"] = ["--compile", "--tf32"]
    before = torch.get_float32_matmul_precision()
    try:
        return {way: _resumes(gpu, train_ddp, [*size, *more], parameters, way) for way, more in ways.items()}
    finally:
        torch.set_float32_matmul_precision(before)


@check(lasting=True)
def the_script_for_adapters_resumes(gpu):
    """Chapter 11's script for adapters trains as on the CPU, stops at SIGTERM, and resumes to the same parameters."""
    adapters = lambda run: [p.detach().cpu().numpy() for p in run.adapters.values()]  # noqa: E731
    return _resumes(gpu, train_adapters, ["--steps", "4", "--lr", "0.01"], adapters)


@check(lasting=True)
def the_rehearsal_for_adapters_finds_the_peak(gpu):
    """Chapter 11's script for adapters allocates no more in training than it says before, and nearly as much."""
    figures = {}
    for rank in ("16", "256"):
        gc.collect()  # what other checks have left
        torch.accelerator.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        options = ["--steps", "4", "--rank", rank]
        with shared_folder(gpu) as folder, sigterm_after(0), patch.object(train_adapters, "log", (logs := []).append):
            train_adapters.run(train_adapters.parse([*options, "--out", folder]), gpu.device)
        (limit,) = (1e9 * float(m[1]) for line in logs if (m := re.search(r"at most ([\d.]+) GB", line)))
        peak = torch.accelerator.max_memory_allocated()
        figures |= {f"rank {rank}: at most, B": limit, f"rank {rank}: peak, B": peak}
        assert peak <= limit < 1.1 * peak + 1e6, figures  # the message gives MB
    return figures


@check(lasting=True)
def the_script_for_sharding_resumes(gpu):
    """Chapter 14's script trains as on the CPU, also recomputed and hybrid, stops at SIGTERM, and resumes."""
    size = ["--width", "16", "--depth", "2", "--examples", "24", "--batch", "12", "--micro", "2", "--steps", "4"]

    def shards(run):
        return [p.to_local().detach().cpu().numpy() for p in run.model.parameters() if p.to_local().numel()]

    ways = {"plain": [], "recomputed": ["--checkpointing", "--scatter-each"], "bf16": BF16}
    if gpu.world % 2 == 0 and gpu.world > 2:
        ways["hybrid"] = ["--shards", "2"]
    return {way: _resumes(gpu, train_fully_sharded, [*size, *more], shards, way) for way, more in ways.items()}


@check(lasting=True)
def torchs_hooks_send_and_train_as_on_the_cpu(gpu):
    """Chapter 16's runs with torch's communication hooks have the losses of the CPU, and send as many bytes."""
    for method in ("exact", "fp16", "bf16", "local"):
        setting = Setting(method, steps=5, begin=1, every=3)
        cpu, found = (hooks.train(setting, where) for where in (CPU, gpu.device))
        np.testing.assert_allclose(found.losses, cpu.losses, rtol=1e-4 if gpu.is_stand_in else 1e-2, err_msg=method)
        assert found.payload == cpu.payload, method
        apart = gpu.world > 1 and method == "local"
        assert [drift > 0 for drift in found.drift] == [False, False, apart, apart, False], method


@check(lasting=True)
def the_script_for_post_local_sgd_trains(gpu):
    """Chapter 16's script for post-local SGD has the weights of the CPU, and ends with equal ranks."""
    options = train_post_local.parse(["--steps", "7", "--begin", "2", "--every", "3"])
    cpu, found = (train_post_local.run(options, where) for where in (CPU, gpu.device))
    for expected, p in zip(_arrays(cpu), _arrays(found), strict=True):
        np.testing.assert_allclose(p, expected, rtol=1e-3, atol=1e-4)
    assert train_post_local.drift(found) == 0

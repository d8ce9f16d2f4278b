"""Training programs on the simulated device, on the ranks of test_programs.py, in one start; results as data."""

import dataclasses
import signal

import torch

from dpbook.book import sim
from dpbook.book.ch11 import train_adapters, train_ddp
from dpbook.book.ch14 import train_fully_sharded
from dpbook.book.ch16 import Setting, hooks, train_post_local
from dpbook.runs.trainer import Options, Trainer
from tests.book.ch11 import test_train_adapters, test_train_ddp
from tests.book.ch14 import test_train_fully_sharded
from tests.book.sim.path_ranks import CPU, SIM, SMALL, bits, losses

STRATEGIES = ("torch", "naive", "hook", "bucketed", "zero1")
VARIANTS = {
    "lora": {"lora": 4}, "bf16": {"precision": "bf16"}, "checkpointing": {"checkpointing": True},
    "cnn": {"model": "cnn", "batch": 8}, "accumulation": {"accumulation": 2},
    "fused": {"fused": True, "strategy": "zero1"},
}  # fmt: skip


def programs(folder):
    """Losses and bits of some steps, with every strategy and other options: on the CPU, and on the device."""
    found = {}
    for name, changes in {"torch": {}, **VARIANTS}.items():
        options = Options(name=name, out=folder, **{**SMALL, "strategy": "torch", **changes})
        found[name] = losses(options, CPU), losses(options, SIM)
    for name in STRATEGIES[1:]:
        found[name] = found["torch"][0], losses(Options(name=name, out=folder, strategy=name, **SMALL), SIM)
    return found


def resumed(folder):
    """For some strategies: whether a run that was ended goes on to the bits of one that was not."""
    found = {}
    for name in ("torch", "zero1"):
        options = Options(name=f"resumed-{name}", out=folder, strategy=name, **SMALL)
        whole = losses(dataclasses.replace(options, name="whole"), SIM)[1]
        first = Trainer(options, SIM)
        first.train_step()
        first.save()
        again = Trainer(options, SIM)
        said = again.resume()
        again.train_step()
        found[name] = bits(again) == whole, said["step"]
    return found


def script(folder):
    """Chapter 11's script on the device: its losses beside those of the CPU, and whether it goes on as if not ended."""
    parse = lambda *more: train_ddp.parse(["--examples", "48", "--batch", "4", *more])  # noqa: E731
    epochs = lambda number, name, *more: parse("--epochs", str(number), "--out", f"{folder}/{name}", *more)  # noqa: E731
    cpu, sim = (train_ddp.run(epochs(2, f"script-{where.type}"), where) for where in (CPU, SIM))
    cut = test_train_ddp.told(2, signal.SIGUSR1, 3, epochs(2, "script-cut"), SIM)
    again = train_ddp.run(epochs(2, "script-cut"), SIM)
    half = train_ddp.run(epochs(1, "script-half", "--precision", "fp16"), SIM)
    held_out = train_ddp.Sequences(13, seed=10**6)
    measured = [train_ddp.evaluate(training, held_out, parse()) for training in (cpu, sim)]
    weights = [[p.tolist() for p in training.ddp.parameters()] for training in (sim, again)]
    resumed = (cut.epoch, cut.step), weights[0] == weights[1]
    return {"measured": measured, "resumed": resumed, "scale": half.scaler.get_scale()}


def adapters(folder):
    """The script for adapters: on the device and on the CPU, and whether it goes on as if it had not been ended."""
    parse = lambda name: train_adapters.parse(["--steps", "4", "--lr", "0.01", "--out", f"{folder}/{name}"])  # noqa: E731
    cpu, sim = (train_adapters.run(parse(f"adapters-{where.type}"), where) for where in (CPU, SIM))
    cut = test_train_adapters.told(1, signal.SIGTERM, 2, parse("adapters-cut"), SIM)
    again = train_adapters.run(parse("adapters-cut"), SIM)
    measured = [[float(each) for p in run.adapters.values() for each in p.norm(dim=1)] for run in (cpu, sim)]
    resumed = cut.step, test_train_adapters.bits(again) == test_train_adapters.bits(sim)
    return {"measured": measured, "resumed": resumed}


def sharded(folder):
    """The script for fully sharded training: on the device and on the CPU, and whether it goes on as if not ended."""
    small = ["--width", "16", "--depth", "2", "--examples", "24", "--batch", "12", "--micro", "2", "--steps", "4"]
    parse = lambda name, *more: train_fully_sharded.parse([*small, "--out", f"{folder}/{name}", *more])  # noqa: E731
    cpu, sim = (train_fully_sharded.run(parse(f"sharded-{where.type}"), where) for where in (CPU, SIM))
    cut = test_train_fully_sharded.told(1, signal.SIGTERM, 2, parse("sharded-cut"), SIM)
    again = train_fully_sharded.run(parse("sharded-cut"), SIM)
    other = train_fully_sharded.run(parse("sharded-other", "--checkpointing", "--scatter-each"), SIM)
    measured = [run.evaluate(11) for run in (cpu, sim, other)]
    resumed = cut.step, test_train_fully_sharded.bits(again) == test_train_fully_sharded.bits(sim)
    return {"measured": measured, "resumed": resumed}


def compressed():
    """Losses and bytes of some steps with each of torch's hooks, on the CPU and on the device; the device's drift."""
    found = {}
    for method in ("exact", "fp16", "bf16", "local"):
        setting = Setting(method, steps=5, begin=1, every=3)
        cpu, sim = (hooks.train(setting, where) for where in (CPU, SIM))
        found[method] = (cpu.losses, cpu.payload), (sim.losses, sim.payload), [drift > 0 for drift in sim.drift]
    return found


def post_local():
    """The script for post-local SGD: its weights on the CPU and on the device, and how far ranks there are apart."""
    options = train_post_local.parse(["--steps", "7", "--begin", "2", "--every", "3"])
    cpu, sim = (train_post_local.run(options, where) for where in (CPU, SIM))
    weights = [[float(each) for p in run.parameters() for each in p.flatten()] for run in (cpu, sim)]
    return *weights, train_post_local.drift(sim)


def everything(rank, world, folder):
    torch.set_num_threads(1)
    sim.join()
    found = {"programs": programs(folder), "resumed": resumed(folder)}
    found |= {"script": script(folder), "adapters": adapters(folder), "sharded": sharded(folder)}
    return found | {"compressed": compressed(), "post-local": post_local()}

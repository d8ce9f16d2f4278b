"""Do the training programs run on an accelerator as on the CPU, with every strategy and option? One start of three."""

import dataclasses
import signal

import pytest

from dpbook.book import sim
from dpbook.book.ch11 import train_adapters, train_ddp
from dpbook.book.ch14 import train_fully_sharded
from dpbook.book.ch16 import Setting, hooks, train_post_local
from dpbook.runs.trainer import Options, Trainer
from tests.book.ch11 import test_train_adapters, test_train_ddp
from tests.book.ch14 import test_train_fully_sharded
from tests.book.sim.paths import CPU, SIM, SMALL, bits_of, losses
from tests.book.sim.sim import needs_sim
from tests.scenarios import Scenarios, gathered

pytestmark = [*needs_sim, pytest.mark.proof]
scenario = Scenarios(sim.join)
VARIANTS = {
    "lora": {"lora": 4}, "bf16": {"precision": "bf16"}, "checkpointing": {"checkpointing": True},
    "cnn": {"model": "cnn", "batch": 8}, "accumulation": {"accumulation": 2},
    "fused": {"fused": True, "strategy": "zero1"},
}  # fmt: skip


@scenario
def strategies_lose_as_the_cpu_and_those_that_send_the_same_buckets_end_with_the_same_bits(rank, world, folder):
    options = {
        name: Options(name=name, out=folder, strategy=name, **SMALL)
        for name in ("torch", "bucketed", "zero1", "naive", "hook")
    }
    cpu, _ = losses(options["torch"], CPU)
    bits = {}
    for name, strategy in options.items():
        on_sim, bits[name] = losses(strategy, SIM)
        assert on_sim == pytest.approx(cpu, rel=1e-4), name
        assert len(set(on_sim)) == len(on_sim)
        assert gathered(bits[name]) == [bits[name]] * world, name
    assert bits["torch"] == bits["bucketed"] == bits["zero1"]
    assert bits["naive"] == bits["hook"]


@scenario
def options_lose_as_on_the_cpu(rank, world, folder):
    """Attention is computed in another way there; products of bf16 are rounded elsewhere."""
    for name, changes in VARIANTS.items():
        options = Options(name=name, out=folder, **{**SMALL, "strategy": "torch", **changes})
        (cpu, _), (on_sim, _) = losses(options, CPU), losses(options, SIM)
        assert on_sim == pytest.approx(cpu, rel=1e-2 if name == "bf16" else 1e-4), name
        assert len(set(on_sim)) == len(on_sim)


@scenario
def a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(rank, world, folder):
    for name in ("torch", "zero1"):
        options = Options(name=f"resumed-{name}", out=folder, strategy=name, **SMALL)
        _, whole = losses(dataclasses.replace(options, name="whole"), SIM)
        first = Trainer(options, SIM)
        first.train_step()
        first.save()
        again = Trainer(options, SIM)
        assert again.resume()["step"] == 1
        again.train_step()
        assert bits_of(again.module) == whole, name


@scenario
def the_script_to_take_home_trains_and_resumes_and_scales_losses(rank, world, folder):
    parse = lambda *more: train_ddp.parse(["--examples", "48", "--batch", "4", *more])  # noqa: E731
    epochs = lambda number, name, *more: parse("--epochs", str(number), "--out", f"{folder}/{name}", *more)  # noqa: E731
    cpu, on_sim = (train_ddp.run(epochs(2, f"script-{where.type}"), where) for where in (CPU, SIM))
    interrupted = test_train_ddp.after_signal(2, signal.SIGUSR1, 3, epochs(2, "script-cut"), SIM)
    assert (interrupted.epoch, interrupted.step) == (1, 1)  # two steps in an epoch
    assert bits_of(train_ddp.run(epochs(2, "script-cut"), SIM).ddp) == bits_of(on_sim.ddp)
    data = train_ddp.Sequences(13, seed=10**6)
    expected, measured = (train_ddp.evaluate(training, data, parse()) for training in (cpu, on_sim))
    assert measured == pytest.approx(expected, rel=1e-4)
    half = train_ddp.run(epochs(1, "script-half", "--precision", "fp16"), SIM)
    assert half.scaler.get_scale() == 65536.0  # no step of these was too large


@scenario
def the_script_for_adapters_trains_and_resumes(rank, world, folder):
    parse = lambda name: train_adapters.parse(["--steps", "4", "--lr", "0.01", "--out", f"{folder}/{name}"])  # noqa: E731
    cpu, on_sim = (train_adapters.run(parse(f"adapters-{where.type}"), where) for where in (CPU, SIM))
    expected, norms = ([float(n) for p in run.adapters.values() for n in p.norm(dim=1)] for run in (cpu, on_sim))
    assert norms == pytest.approx(expected, rel=1e-3)
    assert test_train_adapters.after_signal(1, signal.SIGTERM, 2, parse("adapters-cut"), SIM).step == 2
    again = train_adapters.run(parse("adapters-cut"), SIM)
    assert test_train_adapters.bits(again) == test_train_adapters.bits(on_sim)


@scenario
def the_script_for_full_sharding_trains_and_resumes(rank, world, folder):
    small = ["--width", "16", "--depth", "2", "--examples", "24", "--batch", "12", "--micro", "2", "--steps", "4"]
    parse = lambda name, *more: train_fully_sharded.parse([*small, "--out", f"{folder}/{name}", *more])  # noqa: E731
    cpu, on_sim = (train_fully_sharded.run(parse(f"sharded-{where.type}"), where) for where in (CPU, SIM))
    other = train_fully_sharded.run(parse("sharded-other", "--checkpointing", "--scatter-each"), SIM)
    for run in (on_sim, other):
        assert run.evaluate(11) == pytest.approx(cpu.evaluate(11), rel=1e-4)
    assert test_train_fully_sharded.after_signal(1, signal.SIGTERM, 2, parse("sharded-cut"), SIM).step == 2
    again = train_fully_sharded.run(parse("sharded-cut"), SIM)
    assert test_train_fully_sharded.bits(again) == test_train_fully_sharded.bits(on_sim)


@scenario
def torchs_hooks_send_and_train_as_on_the_cpu(rank, world, folder):
    """But for PowerSGD's, whose callback waits for a collective: the device's own run on one thread."""
    for method in ("exact", "fp16", "bf16", "local"):
        setting = Setting(method, steps=5, begin=1, every=3)
        cpu, on_sim = (hooks.train(setting, where) for where in (CPU, SIM))
        assert on_sim.losses == pytest.approx(cpu.losses, rel=1e-4), method
        assert on_sim.payload == cpu.payload, method
        differs = [drift > 0 for drift in on_sim.drift]
        assert differs == [False, False, method == "local", method == "local", False], method


@scenario
def the_script_for_post_local_sgd_trains_and_ends_with_equal_ranks(rank, world, folder):
    options = train_post_local.parse(["--steps", "7", "--begin", "2", "--every", "3"])
    cpu, on_sim = (train_post_local.run(options, where) for where in (CPU, SIM))
    expected, weights = ([float(w) for p in run.parameters() for w in p.flatten()] for run in (cpu, on_sim))
    assert weights == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert train_post_local.drift(on_sim) == 0


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    return scenario.run(3, str(tmp_path_factory.mktemp("runs")), timeout=240)


@pytest.mark.parametrize("name", scenario.names)
def test_scenario(failures, name):
    assert not failures[name], failures[name]

"""Does the script for adapters send and save them alone, train as one process would, and go on where it was ended?

One start of three ranks. What needs a GPU or other libraries is replaced, and seen to be asked for rightly.
"""

import re
import signal
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dpbook.book import sim
from dpbook.book.ch11 import watch
from dpbook.ranks import start
from scripts import train_adapters
from tests.book.scripts import CPU, run_with_signal
from tests.scenarios import Scenarios, gathered

scenario = Scenarios()
SMALL = ["--rank", "4", "--batch", "3", "--steps", "9", "--lr", "0.01"]
after_signal = partial(run_with_signal, train_adapters, train_adapters.Run)


def options(folder, *others):
    return train_adapters.parse([*SMALL, "--out", str(folder), *others])


def bits(training):
    return [p.detach().cpu().numpy().tobytes() for p in training.adapters.values()]


@scenario
def a_run_that_one_rank_is_told_to_end_resumes_to_the_bits_of_an_uninterrupted_one(rank, world, folder):
    whole = bits(train_adapters.run(options(f"{folder}/whole"), CPU))
    cut = options(f"{folder}/cut")
    first, second = after_signal(1, signal.SIGTERM, 4, cut), after_signal(2, signal.SIGUSR1, 2, cut)
    again = train_adapters.run(cut, CPU)
    assert (first.step, second.step, again.step) == (4, 6, 9)
    assert bits(first) != whole
    assert bits(again) == whole


@scenario
def a_run_does_not_go_on_as_another(rank, world, folder):
    message = r"was saved with batch 3, not 2\. Use the same settings, or another --out\."
    with pytest.raises(SystemExit, match=message):
        train_adapters.run(options(f"{folder}/cut", "--batch", "2"), CPU)


@scenario
def ranks_that_do_not_all_see_the_checkpoint_do_not_train(rank, world, folder):
    """On nodes that share no disk each would decide alone, and gradients of different adapters would be averaged."""
    place = f"{folder}/cut" if rank == 0 else f"{folder}/elsewhere"
    with pytest.raises(SystemExit, match=r"exists, but ranks \[1, 2\] do not see it\. Let --out be a folder that all"):
        train_adapters.run(options(place), CPU)


def frozen(training):
    return [p.detach().numpy().tobytes() for p in training.ddp.module.parameters() if not p.requires_grad]


@scenario
def adapters_alone_are_sent_trained_and_saved(rank, world, folder):
    training = train_adapters.Run(options(folder), CPU)
    before, buckets = frozen(training), watch(training.ddp)
    training.rehearse()
    assert len(buckets) == 2
    assert training.optimizer.defaults["fused"]
    training.train_step()
    assert len(buckets) == 3  # one all-reduce a step, whatever its micro-batches
    nbytes = sum(p.nbytes for p in training.adapters.values())
    assert buckets[-1].buffer.nbytes == nbytes == 4 * 3 * 2 * 4 * (64 + 128)  # fp32, blocks, layers, rank
    assert frozen(training) == before
    training.save(Path(folder, "sent.pt"))
    saved = torch.load(Path(folder, "sent.pt"), weights_only=True)["adapters"]
    assert sorted(name.rpartition(".")[2] for name in saved) == ["down"] * 6 + ["up"] * 6


@scenario
def a_rehearsal_changes_nothing(rank, world, folder):
    rehearsed, other = (train_adapters.Run(options(folder), CPU) for _ in range(2))
    rehearsed.rehearse()
    other.backward(other.micro_batches())  # after which DDP has the same buckets
    other.optimizer.zero_grad()
    assert bits(rehearsed) == bits(other)
    assert not rehearsed.optimizer.state
    assert all(adapter.grad is None for adapter in rehearsed.adapters.values())
    for training in (rehearsed, other):
        training.train_step()
        training.train_step()
    assert bits(rehearsed) == bits(other)


@scenario
def every_token_of_a_step_weighs_the_same(rank, world, folder):
    training = train_adapters.Run(options(folder), CPU)
    model = training.ddp.module
    for adapter in training.adapters.values():
        torch.nn.init.normal_(adapter, std=0.1, generator=torch.Generator().manual_seed(1))
    mine = training.micro_batches()
    micros = gathered(mine)
    assert len({str(micro[0][0].tolist()) for micro in micros}) == world  # each rank has rows of its own
    parts = [(model(x)[y >= 0], y[y >= 0]) for micro in micros for x, y in micro]
    whole = cross_entropy(torch.cat([scores for scores, _ in parts]), torch.cat([y for _, y in parts]))
    expected = torch.autograd.grad(whole, list(training.adapters.values()))
    assert float(training.backward(mine)) == pytest.approx(float(whole), rel=1e-6)
    far = max(float((p.grad - e).abs().max()) for p, e in zip(training.adapters.values(), expected, strict=True))
    assert far < 1e-5


@scenario
def blocks_are_recomputed(rank, world, folder):
    training, calls = train_adapters.Run(options(folder), CPU), []
    training.ddp.module.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    training.train_step()  # of two micro-batches
    assert len(calls) == 4


failures, test_scenario = scenario.tests(3, folder=True)


@pytest.fixture
def libraries(monkeypatch):
    """In place of those that quantise: they note what they are asked for, and give the toy, not in training mode."""
    asked = SimpleNamespace(
        bitsandbytes=Mock(), peft=Mock(), transformers=Mock(), model=train_adapters.Toy(4).requires_grad_(False).eval()
    )
    asked.transformers.AutoTokenizer.from_pretrained.return_value = lambda line: {"input_ids": list(line.encode())}
    asked.peft.get_peft_model.side_effect = lambda base, config: asked.model.requires_grad_(True)
    for name in ("bitsandbytes", "peft", "transformers"):
        monkeypatch.setitem(sys.modules, name, getattr(asked, name))
    return asked


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.processes
def test_a_quantised_model_is_asked_for_whole_on_this_ranks_device(libraries, alone, tmp_path):
    training = train_adapters.Run(options(tmp_path, "--model", "some/model"), CPU)
    (name,), asked = libraries.transformers.AutoModelForCausalLM.from_pretrained.call_args
    assert name == "some/model"
    assert asked["device_map"] == {"": "cpu"}
    assert libraries.transformers.BitsAndBytesConfig.call_args.kwargs["bnb_4bit_quant_type"] == "nf4"
    kept = libraries.peft.prepare_model_for_kbit_training.call_args.kwargs
    assert kept["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert training.ddp.module.training  # else nothing would be recomputed


def test_a_model_that_is_spread_over_devices_is_refused(libraries, tmp_path):
    libraries.model.head.to("meta")
    with pytest.raises(SystemExit, match=r"Parts of the model are on .*meta.*whole model on cpu"):
        train_adapters.Run(options(tmp_path, "--model", "some/model"), CPU)


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(SystemExit, match=r"needs .*bitsandbytes"):
        train_adapters.quantised(options(tmp_path, "--model", "some/model"), CPU)


def peaks(folder, adapter_rank):
    """Return the gigabytes that a rehearsal says are enough, and the bytes that two steps take: the second has all."""
    device = sim.join()
    training, printed = train_adapters.Run(options(folder, "--rank", adapter_rank, "--batch", "16"), device), []
    with patch.object(train_adapters, "log", printed.append):
        training.rehearse()
    torch.accelerator.reset_peak_memory_stats()
    for _ in range(2):
        training.train_step()
    return float(
        re.search(r"^torch's allocator: at most ([\d.]+) GB$", printed[0])[1]
    ), torch.accelerator.max_memory_allocated()


@pytest.mark.proof
@pytest.mark.parametrize("adapter_rank", ["16", "256"])
@pytest.mark.processes
@pytest.mark.skipif(sim.missing() is not None, reason=str(sim.missing()))
def test_a_rehearsal_has_the_peak_of_training(adapter_rank, tmp_path):
    ((rehearsed, trained),) = start(peaks, [(str(tmp_path), adapter_rank)])
    assert 0.9 * rehearsed <= trained / 1e9 <= rehearsed

"""Does the script for adapters send and save them alone, train as one process would, and go on where it was ended?

One start of three ranks. What needs a GPU or other libraries is replaced, and seen to be asked for rightly.
"""

import importlib
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dpbook.book.ch11 import train_adapters, watch
from dpbook.ranks import start

CPU = torch.device("cpu")
SMALL = ["--rank", "4", "--batch", "3", "--steps", "9", "--lr", "0.01"]


def options(folder, *others):
    return train_adapters.parse([*SMALL, "--out", str(folder), *others])


def bits(training):
    return [p.detach().cpu().numpy().tobytes() for p in training.adapters.values()]


def after_signal(rank, number, after, parsed, device=CPU):
    """A run whose process is sent a signal in a step, the ``after``-th from its start, if it is of ``rank``."""
    calls, step = [], train_adapters.Run.train_step

    def counted(training):
        calls.append(training)
        if dist.get_rank() == rank and len(calls) == after:
            os.kill(os.getpid(), number)
        return step(training)

    with patch.object(train_adapters.Run, "train_step", counted):
        return train_adapters.run(parsed, device)


def ended(folder):
    """Steps at which a run ended if one rank, then another, got a signal; and whether its result is as without."""
    whole = bits(train_adapters.run(options(f"{folder}/whole"), CPU))
    cut = options(f"{folder}/cut")
    first, second = after_signal(1, signal.SIGTERM, 4, cut), after_signal(2, signal.SIGUSR1, 2, cut)
    again = train_adapters.run(cut, CPU)
    return (first.step, second.step, again.step), bits(first) != whole, bits(again) == whole


def refused(folder):
    with pytest.raises(SystemExit) as said:
        train_adapters.run(options(f"{folder}/cut", "--batch", "2"), CPU)
    return str(said.value).partition("adapters.pt ")[2]


def frozen(training):
    return [p.detach().numpy().tobytes() for p in training.ddp.module.parameters() if not p.requires_grad]


def sent(folder):
    """Bytes and calls of a step, those of the adapters, whether others changed, and names that are saved."""
    training = train_adapters.Run(options(folder), CPU)
    before, seen = frozen(training), watch(training.ddp)
    training.rehearse()
    calls = [len(seen)]
    training.train_step()
    training.save(Path(folder, "sent.pt"))
    calls.append(len(seen))
    saved = torch.load(Path(folder, "sent.pt"), weights_only=True)["adapters"]
    return {
        "bytes": seen[-1].buffer.nbytes, "adapters": sum(p.nbytes for p in training.adapters.values()), "calls": calls,
        "frozen": frozen(training) == before, "saved": sorted(name.rpartition(".")[2] for name in saved),
    }  # fmt: skip


def gradient(rank, folder):
    """Loss and gradient of a step, and those of all its tokens in one batch."""
    training = train_adapters.Run(options(folder), CPU)
    model, micros = training.ddp.module, [None] * 3
    for adapter in training.adapters.values():
        torch.nn.init.normal_(adapter, std=0.1, generator=torch.Generator().manual_seed(1))
    mine = training.micro_batches()
    dist.all_gather_object(micros, mine)
    parts = [(model(x)[y >= 0], y[y >= 0]) for each in micros for x, y in each]
    whole = cross_entropy(torch.cat([scores for scores, _ in parts]), torch.cat([y for _, y in parts]))
    expected = torch.autograd.grad(whole, list(training.adapters.values()))
    loss = training.backward(mine)
    far = max(float((p.grad - e).abs().max()) for p, e in zip(training.adapters.values(), expected, strict=True))
    return float(loss), float(whole), far, len({str(each[0][0].tolist()) for each in micros})


def recomputed(folder):
    """Number of times that a block is computed in a step of two micro-batches."""
    training, calls = train_adapters.Run(options(folder), CPU), []
    training.ddp.module.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    training.train_step()
    return len(calls)


def invisible(rank, folder):
    """The error of a second start in which only rank 0 sees the checkpoint, as on nodes that share no disk."""
    place = f"{folder}/cut" if rank == 0 else f"{folder}/elsewhere"
    with pytest.raises(SystemExit) as error:
        train_adapters.run(options(place), CPU)
    return str(error.value)


def everything(rank, folder):
    torch.set_num_threads(1)
    return {
        "ended": ended(folder), "refused": refused(folder), "sent": sent(folder), "gradient": gradient(rank, folder),
        "recomputed": recomputed(folder), "invisible": invisible(rank, folder),
    }  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    module = importlib.import_module("tests.book.ch11.test_train_adapters")
    folder = str(tmp_path_factory.mktemp("adapters"))
    return start(module.everything, [(rank, folder) for rank in range(3)], timeout=120, echo=False)


@pytest.mark.processes
def test_a_run_that_one_rank_is_told_to_end_goes_on_to_the_bits_of_one_that_was_not(ranks):
    assert [rank["ended"] for rank in ranks] == [((4, 6, 9), True, True)] * 3
    assert {rank["refused"] for rank in ranks} == {
        "was saved with batch 3, not 2. Use the same settings, or another --out."
    }


@pytest.mark.processes
def test_ranks_that_do_not_all_see_the_checkpoint_do_not_train(ranks):
    """Each rank would otherwise decide alone, and gradients of different adapters would be averaged."""
    assert [rank["invisible"].partition(" exists, ")[2] for rank in ranks] == [
        "but ranks [1, 2] do not see it. Let --out be a folder that all nodes share."
    ] * 3


@pytest.mark.processes
def test_adapters_alone_are_sent_trained_and_saved(ranks):
    for rank in ranks:
        found = rank["sent"]
        assert found["bytes"] == found["adapters"] == 4 * 3 * 2 * 4 * (64 + 128)  # fp32, blocks, layers, rank
        assert found["calls"] == [1, 2]  # one all-reduce a step, whatever its micro-batches
        assert found["frozen"]
        assert found["saved"] == ["down"] * 6 + ["up"] * 6


@pytest.mark.processes
def test_every_token_of_a_step_weighs_the_same(ranks):
    for rank in ranks:
        loss, expected, far, different = rank["gradient"]
        assert loss == pytest.approx(expected, rel=1e-6)
        assert far < 1e-5
        assert different == 3  # each rank has rows of its own


@pytest.mark.processes
def test_blocks_are_recomputed(ranks):
    assert [rank["recomputed"] for rank in ranks] == [4, 4, 4]


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


def test_gpus_that_are_left_idle_are_told_of(monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(os, "environ", {"LOCAL_WORLD_SIZE": "2"})
    assert train_adapters.join() == torch.device("cpu")
    assert capsys.readouterr().out.startswith("Training on the CPU: a rank sees 1 GPUs, and this node needs 2")
